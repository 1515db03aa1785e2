//! Where a block's file stands below a root, and back from a path to the block's name.
//!
//! `<namespace digest, 64 hex digits>/<fan-out, 3 hex digits>/<block hash, hex>_g<group, decimal>.blk`. The fan-out is
//! taken from the CRC32 of the key, not from the hash itself, so that hashes with equal first bytes spread as well.

use std::fmt::Write as _;

use terrace_primary::{Key, MAX_HASH_BYTES};

use super::path::RelPath;
use super::port::BlockName;

/// Directories below one namespace.
pub const FAN_OUT: u16 = 4096;
/// Where files are written before they are published.
pub const TMP: &str = "tmp";
/// Where copies that did not check out are kept.
pub const QUARANTINE: &str = "quarantine";
/// Ending of a block file.
const SUFFIX: &str = ".blk";

impl BlockName {
    /// Which of the [`FAN_OUT`] directories of its namespace holds the block.
    pub fn fan_out(&self) -> u16 {
        (crc32fast::hash(self.key.as_bytes()) % u32::from(FAN_OUT)) as u16
    }

    /// The directory that holds the block's file.
    pub fn dir(&self) -> RelPath {
        fan_out_dir(&self.namespace, self.fan_out())
    }

    /// The block's file.
    pub fn path(&self) -> RelPath {
        make(|path| {
            write_dir(path, &self.namespace, self.fan_out())?;
            path.write_char('/')?;
            write_file_name(path, &self.key)
        })
    }

    /// The block whose file is `file` in directory `fan_out` of `namespace`, all as directory entries. `None`: a foreign
    /// file, or one in a place where it would not be looked for.
    pub fn parse(namespace: &str, fan_out: &str, file: &str) -> Option<Self> {
        let namespace = parse_namespace(namespace)?;
        let (hash, group) = file.strip_suffix(SUFFIX)?.split_once("_g")?;
        let mut bytes = [0; MAX_HASH_BYTES];
        let hash = decode_hex(hash, &mut bytes)?;
        let name = Self { namespace, key: Key::new(hash, group.parse().ok()?).ok()? };
        // Only the one spelling that `path` writes is this block's file.
        let path = name.path();
        let mut parts = path.as_str().split('/').skip(1);
        (parts.next() == Some(fan_out) && parts.next() == Some(file)).then_some(name)
    }
}

/// The namespace whose directory is called `text`.
pub fn parse_namespace(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    (decode_hex(text, &mut digest)?.len() == 32).then_some(digest)
}

/// The directory of a namespace.
pub fn namespace_dir(namespace: &[u8; 32]) -> RelPath {
    make(|path| write_hex(path, namespace))
}

/// A fan-out directory of a namespace.
pub fn fan_out_dir(namespace: &[u8; 32], fan_out: u16) -> RelPath {
    make(|path| write_dir(path, namespace, fan_out))
}

/// The `place`-th name in `tmp/`: one for each operation that may be under way, so that crashes leave a bounded number.
pub fn temp_path(place: u32) -> RelPath {
    make(|path| write!(path, "{TMP}/{place}"))
}

/// The `place`-th name in `quarantine/`. Places are used in turn, which bounds what is kept over any number of lives.
pub fn quarantine_path(place: u32) -> RelPath {
    make(|path| write!(path, "{QUARANTINE}/{place}{SUFFIX}"))
}

fn write_dir(path: &mut RelPath, namespace: &[u8; 32], fan_out: u16) -> std::fmt::Result {
    write_hex(path, namespace)?;
    write!(path, "/{fan_out:03x}")
}

fn write_file_name(path: &mut RelPath, key: &Key) -> std::fmt::Result {
    write_hex(path, key.hash())?;
    write!(path, "_g{}{SUFFIX}", key.group())
}

fn write_hex(path: &mut RelPath, bytes: &[u8]) -> std::fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 2 * MAX_HASH_BYTES];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    let used = text.get(..2 * bytes.len()).ok_or(std::fmt::Error)?;
    path.write_str(std::str::from_utf8(used).map_err(|_| std::fmt::Error)?)
}

/// The bytes that lower-case hex digits name, at the start of `out`.
fn decode_hex<'a>(text: &str, out: &'a mut [u8]) -> Option<&'a [u8]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    let out = out.get_mut(..text.len() / 2)?;
    if !text.len().is_multiple_of(2) {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// A path that fits by construction: the longest one has 211 bytes, which the test below writes.
fn make(write: impl FnOnce(&mut RelPath) -> std::fmt::Result) -> RelPath {
    RelPath::build(write).unwrap_or_else(RelPath::root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_their_paths() {
        for hash_bytes in [1, 8, 32, MAX_HASH_BYTES] {
            let name = BlockName { namespace: [0xa5; 32], key: Key::new(&vec![0x3c; hash_bytes], u32::MAX).unwrap() };
            let path = name.path();
            let parts: Vec<_> = path.as_str().split('/').collect();
            assert_eq!(parts.len(), 3, "{path}");
            assert_eq!(BlockName::parse(parts[0], parts[1], parts[2]), Some(name));
            assert!(path.as_str().starts_with(name.dir().as_str()));
        }
    }

    #[test]
    fn the_path_is_the_documented_one() {
        let name = BlockName { namespace: [1; 32], key: Key::new(&[0xab, 0xcd], 7).unwrap() };
        assert_eq!(name.path().as_str(), format!("{}/{:03x}/abcd_g7.blk", "01".repeat(32), name.fan_out()));
    }

    #[test]
    fn foreign_names_are_refused() {
        let name = BlockName { namespace: [1; 32], key: Key::new(&[0xab, 0xcd], 7).unwrap() };
        let (namespace, fan_out) = ("01".repeat(32), format!("{:03x}", name.fan_out()));
        assert!(BlockName::parse(&namespace, &fan_out, "abcd_g7.blk").is_some());
        let elsewhere = format!("{:03x}", name.fan_out() ^ 1);
        assert!(BlockName::parse(&namespace, &elsewhere, "abcd_g7.blk").is_none());
        for file in
            ["abcd_g07.blk", "ABCD_g7.blk", "abcd_g+7.blk", "abcd_g7.blk~", "abc_g7.blk", "_g7.blk", "abcd.blk", ""]
        {
            assert!(BlockName::parse(&namespace, &fan_out, file).is_none(), "{file}");
        }
        assert!(BlockName::parse("01", &fan_out, "abcd_g7.blk").is_none());
    }
}
