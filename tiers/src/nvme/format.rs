//! The block file: payload, then one footer. `docs/format.md` draws it byte by byte.
//!
//! The footer stands behind the payload so that payloads start at offset 0, aligned for direct I/O, and so that a torn
//! file shows as one whose end is wrong.

use terrace_primary::{Key, MAX_KEY_BYTES};

/// Version of the block file and of the directory that holds it. `docs/format.md` has the rule for changing it.
pub const FORMAT_VERSION: u32 = 1;
/// Length of the footer, and the unit to which payloads are padded: the alignment that direct I/O asks for.
pub const FOOTER_BYTES: usize = 4096;
/// First bytes of a footer.
pub const MAGIC: [u8; 8] = *b"TERRABLK";
/// The payload is stored as it is. No other codec exists in version 1.
const CODEC_NONE: u8 = 0;

// Offsets in the footer. All numbers are little-endian.
const AT_VERSION: usize = 8;
const AT_FOOTER_BYTES: usize = 12;
const AT_PAYLOAD_BYTES: usize = 16;
const AT_STORED_BYTES: usize = 24;
const AT_NAMESPACE: usize = 32;
const AT_CRC: usize = 64;
const AT_STORED_CRC: usize = 68;
const AT_CODEC: usize = 72;
const AT_KEY_LEN: usize = 73;
const AT_KEY: usize = 74;
const AT_FOOTER_CRC: usize = FOOTER_BYTES - 4;
const _: () = assert!(AT_KEY + MAX_KEY_BYTES < AT_FOOTER_CRC);

/// Length of the file of a block of `payload_bytes`: padded payload and footer.
pub const fn file_bytes(payload_bytes: u32) -> u64 {
    payload_bytes as u64 / 4096 * 4096 + if payload_bytes.is_multiple_of(4096) { 0 } else { 4096 } + FOOTER_BYTES as u64
}

/// What a footer says of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Digest of the namespace.
    pub namespace: [u8; 32],
    /// Key of the block.
    pub key: Key,
    /// Bytes of the payload, without padding.
    pub payload_bytes: u32,
    /// CRC32 (IEEE) of the payload.
    pub crc32: u32,
}

/// Why bytes are no footer of the block that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FooterError {
    /// Not a footer at all.
    #[error("no footer where one should stand")]
    Magic,
    /// Written by another version of Terrace.
    #[error("format version {0}, this program reads {FORMAT_VERSION}")]
    Version(u32),
    /// The footer itself is damaged.
    #[error("the footer's own CRC32 does not match")]
    FooterCrc,
    /// A number in it makes no sense.
    #[error("{0} is out of bounds")]
    Field(&'static str),
    /// A sound footer of another block, namespace or length.
    #[error("the file holds another block: its {0} differs")]
    Other(&'static str),
    /// The payload does not match its CRC32.
    #[error("the payload's CRC32 does not match")]
    PayloadCrc,
}

impl Footer {
    /// Writes the footer; every byte of `out` is set.
    pub fn encode(&self, out: &mut [u8; FOOTER_BYTES]) {
        let key = self.key.as_bytes();
        out.fill(0);
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(AT_VERSION, &FORMAT_VERSION.to_le_bytes());
        put(AT_FOOTER_BYTES, &(FOOTER_BYTES as u32).to_le_bytes());
        put(AT_PAYLOAD_BYTES, &u64::from(self.payload_bytes).to_le_bytes());
        put(AT_STORED_BYTES, &u64::from(self.payload_bytes).to_le_bytes());
        put(AT_NAMESPACE, &self.namespace);
        put(AT_CRC, &self.crc32.to_le_bytes());
        put(AT_STORED_CRC, &self.crc32.to_le_bytes());
        put(AT_CODEC, &[CODEC_NONE]);
        put(AT_KEY_LEN, &[key.len() as u8]);
        put(AT_KEY, key);
        let crc = crc32fast::hash(&out[..AT_FOOTER_CRC]);
        out[AT_FOOTER_CRC..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a footer. The order of the checks tells versions apart before anything that a version may move.
    pub fn decode(bytes: &[u8; FOOTER_BYTES]) -> Result<Self, FooterError> {
        if bytes[..AT_VERSION] != MAGIC {
            return Err(FooterError::Magic);
        }
        let version = u32_at(bytes, AT_VERSION);
        if version != FORMAT_VERSION {
            return Err(FooterError::Version(version));
        }
        if u32_at(bytes, AT_FOOTER_CRC) != crc32fast::hash(&bytes[..AT_FOOTER_CRC]) {
            return Err(FooterError::FooterCrc);
        }
        if u32_at(bytes, AT_FOOTER_BYTES) as usize != FOOTER_BYTES {
            return Err(FooterError::Field("the footer's length"));
        }
        if bytes[AT_CODEC] != CODEC_NONE {
            return Err(FooterError::Field("the codec"));
        }
        let (payload, crc32) = (u64_at(bytes, AT_PAYLOAD_BYTES), u32_at(bytes, AT_CRC));
        if payload != u64_at(bytes, AT_STORED_BYTES) || crc32 != u32_at(bytes, AT_STORED_CRC) {
            return Err(FooterError::Field("the stored length or CRC32"));
        }
        let payload_bytes = u32::try_from(payload).map_err(|_| FooterError::Field("the payload's length"))?;
        let key = bytes
            .get(AT_KEY..AT_KEY + usize::from(bytes[AT_KEY_LEN]))
            .and_then(|key| Key::from_bytes(key).ok())
            .ok_or(FooterError::Field("the key"))?;
        let mut namespace = [0; 32];
        namespace.copy_from_slice(&bytes[AT_NAMESPACE..AT_NAMESPACE + 32]);
        Ok(Self { namespace, key, payload_bytes, crc32 })
    }

    /// Whether this is the footer of the block `key` of `namespace` with `payload_bytes`.
    pub fn check(&self, namespace: &[u8; 32], key: &Key, payload_bytes: u32) -> Result<(), FooterError> {
        if self.namespace != *namespace {
            return Err(FooterError::Other("namespace"));
        }
        if self.key != *key {
            return Err(FooterError::Other("key"));
        }
        if self.payload_bytes != payload_bytes {
            return Err(FooterError::Other("payload length"));
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8; FOOTER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; FOOTER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_footer_is_found() {
        let footer =
            Footer { namespace: [7; 32], key: Key::new(&[9; 32], 3).unwrap(), payload_bytes: 5000, crc32: 0xdead };
        let mut bytes = [0xff; FOOTER_BYTES];
        footer.encode(&mut bytes);
        assert_eq!(Footer::decode(&bytes), Ok(footer));
        for bit in 0..FOOTER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn tells_other_blocks_apart() {
        let key = Key::new(&[9; 32], 3).unwrap();
        let footer = Footer { namespace: [7; 32], key, payload_bytes: 5000, crc32: 0 };
        assert_eq!(footer.check(&[7; 32], &key, 5000), Ok(()));
        assert_eq!(footer.check(&[8; 32], &key, 5000), Err(FooterError::Other("namespace")));
        assert_eq!(footer.check(&[7; 32], &Key::new(&[9; 32], 4).unwrap(), 5000), Err(FooterError::Other("key")));
        assert_eq!(footer.check(&[7; 32], &key, 4096), Err(FooterError::Other("payload length")));
    }

    #[test]
    fn files_are_padded() {
        assert_eq!([1, 4096, 4097].map(file_bytes), [8192, 8192, 12288]);
    }
}
