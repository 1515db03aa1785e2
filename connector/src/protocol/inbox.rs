//! Bytes that came over a socket and the frames in them: read into place, and used from there without a copy.

use super::error::ProtocolError;
use super::frame::{FrameHeader, HEADER_BYTES};

/// Memory that is kept while nothing is in it.
const KEEP_BYTES: usize = 256 << 10;

/// What came and is not served yet. It never holds more than was read into it.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// All of it initialised, so that a socket can be read into its end.
    bytes: Vec<u8>,
    /// Bytes of `bytes` that came.
    filled: usize,
    /// Of these, bytes of frames that are done with.
    taken: usize,
}

impl Inbox {
    /// Where to read to: at least `least` bytes. Follow with [`Inbox::came`].
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        if self.taken == self.filled {
            (self.filled, self.taken) = (0, 0);
            if self.bytes.len() > KEEP_BYTES {
                self.bytes.truncate(KEEP_BYTES);
                self.bytes.shrink_to_fit();
            }
        }
        if self.bytes.len() - self.filled < least {
            self.bytes.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
            let needed = self.filled.saturating_add(least);
            if self.bytes.len() < needed {
                self.bytes.resize(needed, 0);
            }
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// So many bytes were read to the start of [`Inbox::room`].
    pub fn came(&mut self, bytes: usize) {
        self.filled = self.filled.saturating_add(bytes).min(self.bytes.len());
    }

    /// The first whole frame: its header and its body. `None`: not all of it is here. Bodies beyond `most_body_bytes`
    /// are refused as soon as their header is here.
    pub fn frame(&self, most_body_bytes: u32) -> Result<Option<(FrameHeader, &[u8])>, ProtocolError> {
        let rest = self.bytes.get(self.taken..self.filled).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = FrameHeader::from_bytes(header, most_body_bytes)?;
        Ok(rest.get(..header.body_bytes as usize).map(|body| (header, body)))
    }

    /// The frame with this header, which [`Inbox::frame`] gave, is done with.
    pub fn take(&mut self, header: &FrameHeader) {
        self.taken = self.taken.saturating_add(HEADER_BYTES + header.body_bytes as usize).min(self.filled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FrameFlags, Kind};

    fn frame(sequence: u64, body_bytes: usize) -> Vec<u8> {
        let kind = Kind::Lookup;
        let header =
            FrameHeader { kind, flags: FrameFlags::REQUEST, body_bytes: body_bytes as u32, sequence, descriptors: 0 };
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(HEADER_BYTES + body_bytes, sequence as u8);
        bytes
    }

    /// Frames of all sizes, cut into pieces of all sizes, come out whole and in order, and memory is given back.
    #[test]
    fn frames_come_out_as_they_went_in() {
        let sizes = [0, 1, 31, 32, 33, 4_000, 70_000, 0, 600_000, 5];
        let stream: Vec<u8> = sizes.iter().zip(1..).flat_map(|(size, sequence)| frame(sequence, *size)).collect();
        for piece in [7, 32, 1_000, 65_536, stream.len()] {
            let (mut inbox, mut seen) = (Inbox::default(), Vec::new());
            let mut rest = stream.as_slice();
            while !rest.is_empty() {
                let room = inbox.room(1 + piece / 2);
                assert!(room.len() > piece / 2);
                let bytes = piece.min(room.len()).min(rest.len());
                let (now, later) = rest.split_at(bytes);
                room[..bytes].copy_from_slice(now);
                inbox.came(bytes);
                rest = later;
                while let Some((header, body)) = inbox.frame(1 << 20).expect("good frames") {
                    assert!(body.iter().all(|byte| *byte == header.sequence as u8));
                    seen.push(body.len());
                    inbox.take(&header);
                }
            }
            assert_eq!(seen, sizes, "in pieces of {piece}");
            inbox.room(1);
            assert!(inbox.bytes.capacity() <= KEEP_BYTES);
        }
    }

    #[test]
    fn a_long_body_is_refused_with_its_header() {
        let mut inbox = Inbox::default();
        let bytes = frame(1, 101);
        inbox.room(HEADER_BYTES)[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
        inbox.came(HEADER_BYTES);
        assert_eq!(inbox.frame(100), Err(ProtocolError::Length { got: 101, limit: 100 }));
        assert_eq!(inbox.frame(101), Ok(None));
    }
}
