//! Block hashes as the engine computes them.

use crate::error::ConnectorError;

/// A flat list of block hashes of equal length, in prefix order. One allocation, whatever its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashList {
    hash_bytes: usize,
    bytes: Vec<u8>,
}

impl HashList {
    /// An empty list of hashes of `hash_bytes` bytes each.
    pub const fn new(hash_bytes: usize) -> Self {
        Self { hash_bytes, bytes: Vec::new() }
    }

    /// The same with room for `blocks` hashes.
    pub fn with_capacity(hash_bytes: usize, blocks: usize) -> Self {
        Self { hash_bytes, bytes: Vec::with_capacity(hash_bytes.saturating_mul(blocks)) }
    }

    /// Appends a hash. `Invalid` if it has another length than this list's.
    pub fn push(&mut self, hash: &[u8]) -> Result<(), ConnectorError> {
        if hash.len() != self.hash_bytes || hash.is_empty() {
            return Err(ConnectorError::invalid(format!(
                "a block hash of {} bytes in a list of {}-byte hashes",
                hash.len(),
                self.hash_bytes
            )));
        }
        self.bytes.extend_from_slice(hash);
        Ok(())
    }

    /// Appends all hashes of `other`. `Invalid` if they have another length.
    pub fn extend(&mut self, other: &Self) -> Result<(), ConnectorError> {
        if other.is_empty() {
            return Ok(());
        }
        if other.hash_bytes != self.hash_bytes {
            return Err(ConnectorError::invalid(format!(
                "block hashes of {} bytes for a list of {}-byte hashes",
                other.hash_bytes, self.hash_bytes
            )));
        }
        self.bytes.extend_from_slice(&other.bytes);
        Ok(())
    }

    /// The hash of block `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_mul(self.hash_bytes)?;
        self.bytes.get(start..start + self.hash_bytes).filter(|hash| !hash.is_empty())
    }

    /// Hashes in the list.
    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.hash_bytes).unwrap_or(0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Length of each hash.
    pub const fn hash_bytes(&self) -> usize {
        self.hash_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_refuses_other_lengths() {
        let mut list = HashList::new(4);
        list.push(&[1, 2, 3, 4]).unwrap();
        list.push(&[5, 6, 7, 8]).unwrap();
        assert!(list.push(&[1, 2, 3]).is_err());
        let mut other = HashList::new(2);
        list.extend(&other).unwrap();
        other.push(&[1, 2]).unwrap();
        assert!(list.extend(&other).is_err());
        list.extend(&list.clone()).unwrap();
        assert_eq!(list.len(), 4);
        assert_eq!(list.get(3), Some(&[5, 6, 7, 8][..]));
        assert_eq!(list.get(4), None);
        assert_eq!(list.get(usize::MAX), None);
    }

    #[test]
    fn hashes_of_no_bytes_do_not_exist() {
        let mut list = HashList::new(0);
        assert!(list.push(&[]).is_err());
        assert_eq!(list.len(), 0);
        assert_eq!(list.get(0), None);
    }
}
