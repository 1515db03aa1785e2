//! The codec of the catalog's entries, with what it finds beside it in its crate.

pub use terrace_tiers::catalog::{CatalogEntry, CatalogValue};

#[path = "../../../../tiers/src/catalog/record.rs"]
mod record;

pub fn check(bytes: &[u8]) {
    if let Some(meta) = record::Meta::from_bytes(bytes) {
        assert_eq!(record::Meta::from_bytes(&meta.to_bytes()), Some(meta));
    }
    let Some((len, rest)) = bytes.split_first() else { return };
    let Some((key, value)) = rest.split_at_checked(usize::from(*len)) else { return };
    if let Some(entry) = record::entry(key, value) {
        assert_eq!(record::key_bytes(&entry.name), key);
        let written = record::value_bytes(&entry.value);
        assert_eq!((written.len(), record::entry(key, &written)), (record::VALUE_BYTES, Some(entry)));
        assert_ne!(key, record::META_KEY);
    }
}
