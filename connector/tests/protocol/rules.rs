//! What holds for any bytes: they are refused, or they are a message that stays the same when it is written and read again.

use terrace_connector::protocol::{
    Answer, CopyJob, HEADER_BYTES, Kind, MAGIC, VERSION, keys_from_bytes, keys_to_bytes,
};
use terrace_connector::protocol::{numbers_from_bytes, numbers_to_bytes};

use super::MESSAGE_BYTES;
use super::frames::{Message, decode_frame, encode_frame};

/// Checks it; whether the bytes are a frame.
pub fn check(bytes: &[u8]) -> bool {
    let Ok((header, message)) = decode_frame(bytes, MESSAGE_BYTES) else { return false };
    let written = encode_frame(header, &message);
    // A float may have come in fewer bytes.
    let (header_again, message_again) =
        decode_frame(&written, 16 * MESSAGE_BYTES).expect("what was written is a frame");
    assert_eq!((header.kind, header.flags), (header_again.kind, header_again.flags));
    assert_eq!((header.sequence, header.descriptors), (header_again.sequence, header_again.descriptors));
    // As bytes: a float need not be equal to itself.
    assert_eq!(encode_frame(header_again, &message_again), written);
    strings(&message).into_iter().for_each(check_lists);
    true
}

/// The frame that these bytes would be with a header that is right in its magic, version, kind, flags and length, so that the
/// body is what is tried.
pub fn repair(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut frame = bytes.to_vec();
    let body_bytes = u32::try_from(bytes.len().checked_sub(HEADER_BYTES)?).ok()?;
    // What is right already stays.
    let kind = (u16::from(frame[6]) + 17) % 18 + 1;
    let flags = [0, 1, 0, 3, 4, 4, 1, 3][usize::from(frame[8] % 8)];
    let flags: u32 = match Kind::from_number(kind)? {
        Kind::Goodbye | Kind::Copied => 4,
        Kind::Complete | Kind::StoreRows | Kind::LoadRows | Kind::Copy | Kind::Bye if flags < 3 => 4,
        _ if flags == 4 => 0,
        _ => flags,
    };
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..6].copy_from_slice(&VERSION.to_le_bytes());
    frame[6..8].copy_from_slice(&kind.to_le_bytes());
    frame[8..12].copy_from_slice(&flags.to_le_bytes());
    frame[12..16].copy_from_slice(&body_bytes.to_le_bytes());
    frame[24..32].fill(0);
    Some(frame)
}

/// Byte strings that a receiver takes apart.
fn strings(message: &Message) -> Vec<&[u8]> {
    match message {
        Message::Lookup(message) => message.queries.iter().map(|query| query.keys.as_slice()).collect(),
        Message::LookupReply(message) => vec![&message.answers, &message.slots],
        Message::Lease(message) => vec![&message.slots],
        Message::PrepareStore(message) => vec![&message.keys],
        Message::PrepareStoreReply(message) => vec![&message.store, &message.slots],
        Message::EndStep(message) => {
            let leases = message.leases.iter().flat_map(|end| [end.load.as_slice(), &end.wait]);
            leases.chain([message.touched.as_slice()]).collect()
        }
        Message::EndStepReply(message) => {
            let refused = message.refused.iter().map(|refusal| refusal.keys.as_slice());
            refused.chain(message.events.iter().map(|batch| batch.keys.as_slice())).collect()
        }
        Message::Pin(message) => vec![&message.keys],
        Message::Unpin(message) => vec![&message.keys],
        Message::StoreRows(message) => vec![&message.keys, &message.rows],
        Message::LoadRows(message) => vec![&message.keys, &message.rows],
        Message::Copy(message) => message.jobs.iter().flat_map(lists).collect(),
        _ => Vec::new(),
    }
}

fn lists(job: &CopyJob) -> [&[u8]; 4] {
    [&job.blocks, &job.sizes, &job.firsts, &job.slots]
}

fn check_lists(bytes: &[u8]) {
    for key_bytes in [0, 4, 5, 36, 68, 69] {
        let (mut keys, mut again) = (Vec::new(), Vec::new());
        if keys_from_bytes(bytes, key_bytes, &mut keys).is_ok() {
            keys_to_bytes(&keys, &mut again);
            assert_eq!(again, bytes);
        }
    }
    let mut numbers = Vec::new();
    match numbers_from_bytes(bytes, &mut numbers) {
        Ok(()) => assert_eq!(numbers_to_bytes(numbers), bytes),
        Err(_) => assert!(!bytes.len().is_multiple_of(4)),
    }
    for byte in bytes {
        assert!(Answer::from_byte(*byte).is_none_or(|answer| answer.to_byte() == *byte));
    }
}
