//! Paths relative to a directory's root: short, copied freely, ready for a system call.

use std::ffi::CStr;
use std::fmt::{self, Write as _};

/// Longest path with its closing NUL.
const CAPACITY: usize = 239;

/// A path relative to the root, at most 238 bytes of ASCII, NUL-terminated in place so that no call allocates.
#[derive(Clone, Copy)]
pub struct RelPath {
    len: u8,
    bytes: [u8; CAPACITY],
}

impl RelPath {
    /// The root itself, `.`.
    pub fn root() -> Self {
        Self::build(|path| path.write_str(".")).unwrap_or(Self::EMPTY)
    }

    const EMPTY: Self = Self { len: 0, bytes: [0; CAPACITY] };

    /// The path `text`. `None`: too long, empty, absolute, not ASCII, or with a NUL or a `..` component in it.
    pub fn new(text: &str) -> Option<Self> {
        if text.is_empty() || text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return None;
        }
        Self::build(|path| path.write_str(text))
    }

    /// The entry `name` of this directory. `None` as for [`RelPath::new`].
    pub fn join(&self, name: &str) -> Option<Self> {
        if name.is_empty() || name == ".." || name.contains('/') {
            return None;
        }
        if self.as_str() == "." {
            return Self::build(|path| path.write_str(name));
        }
        Self::build(|path| write!(path, "{}/{name}", self.as_str()))
    }

    /// What `write` writes. `None`: it did not fit, or was no NUL-free ASCII.
    pub(super) fn build(write: impl FnOnce(&mut Self) -> fmt::Result) -> Option<Self> {
        let mut path = Self::EMPTY;
        write(&mut path).ok().map(|()| path)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// As a C string.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Write for RelPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = usize::from(self.len);
        let end = start + text.len();
        // One byte stays zero: the NUL.
        if end >= CAPACITY || !text.bytes().all(|byte| byte.is_ascii() && byte != 0) {
            return Err(fmt::Error);
        }
        self.bytes[start..end].copy_from_slice(text.as_bytes());
        self.len = end as u8;
        Ok(())
    }
}

impl PartialEq for RelPath {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RelPath {}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl std::hash::Hash for RelPath {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_fits_and_refuses_the_rest() {
        let path = RelPath::new("tmp/1").unwrap();
        assert_eq!(path.as_str(), "tmp/1");
        assert_eq!(path.as_c_str().to_bytes(), b"tmp/1");
        assert_eq!(path.join("x").unwrap().as_str(), "tmp/1/x");
        assert_eq!(RelPath::root().join("x").unwrap().as_str(), "x");
        assert!(RelPath::new(&"a".repeat(238)).is_some());
        for bad in ["", "/etc", "a/../b", "a\0b", "h\u{e4}", &"a".repeat(239)] {
            assert!(RelPath::new(bad).is_none(), "{bad:?}");
        }
        assert!(path.join("..").is_none() && path.join("a/b").is_none() && path.join("").is_none());
    }
}
