//! Frames as they are written.

use serde::Serialize;

use crate::protocol::{ErrorCode, ErrorReply, FrameFlags, FrameHeader, HEADER_BYTES, Kind, encode};

use super::refusal::Refusal;

/// Appends a frame with `message` as its body; one that is longer than `most_body_bytes` becomes a refusal.
pub(super) fn push_message<T: Serialize>(
    out: &mut Vec<u8>,
    (kind, flags, sequence): (Kind, FrameFlags, u64),
    message: &T,
    descriptors: u16,
    most_body_bytes: u32,
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let encoded = encode(message, out);
    let body_bytes = u32::try_from(out.len() - start - HEADER_BYTES).ok().filter(|bytes| *bytes <= most_body_bytes);
    match (encoded, body_bytes) {
        (Ok(()), Some(body_bytes)) => {
            put_header(out, start, FrameHeader { kind, flags, body_bytes, sequence, descriptors });
        }
        (Err(error), _) => {
            out.truncate(start);
            push_error(out, kind, sequence, &ErrorReply::new(ErrorCode::Internal, error.to_string()));
        }
        (Ok(()), None) => {
            out.truncate(start);
            let text = format!("the reply would have more than {most_body_bytes} bytes: ask for less");
            push_error(out, kind, sequence, &ErrorReply::new(ErrorCode::Limit, text));
        }
    }
}

/// Appends a frame without a body.
pub(super) fn push_empty(out: &mut Vec<u8>, kind: Kind, sequence: u64) {
    let header = FrameHeader { kind, flags: FrameFlags::REPLY, body_bytes: 0, sequence, descriptors: 0 };
    out.extend_from_slice(&header.to_bytes());
}

/// Appends the refusal of a frame.
pub(super) fn push_refusal(out: &mut Vec<u8>, kind: Kind, sequence: u64, refusal: &Refusal) {
    push_error(out, kind, sequence, &refusal.reply());
}

fn push_error(out: &mut Vec<u8>, kind: Kind, sequence: u64, error: &ErrorReply) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    // A number and a short text: nothing in it can be refused.
    if encode(error, out).is_err() {
        out.truncate(start + HEADER_BYTES);
    }
    let body_bytes = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(0);
    put_header(out, start, FrameHeader { kind, flags: FrameFlags::ERROR, body_bytes, sequence, descriptors: 0 });
}

fn put_header(out: &mut [u8], start: usize, header: FrameHeader) {
    if let Some(place) = out.get_mut(start..).and_then(|rest| rest.first_chunk_mut::<HEADER_BYTES>()) {
        *place = header.to_bytes();
    }
}
