//! A namespace in words: what a store keeps beside the blocks, so that people and `terrace tenant` know whose they are.

use std::fmt::Write;

use toml::{Table, Value};

use crate::model::Geometry;
use crate::namespace::Namespace;
use crate::value::quoted;

/// Longest label that is read.
pub const MAX_LABEL_BYTES: usize = 64 << 10;

const HEAD: &str = "# Terrace: whose blocks stand here. Not needed to read them.\n";

impl Namespace {
    /// This namespace and `geometry` as TOML, a line a field. Holds no secret.
    pub fn to_label(&self, geometry: &Geometry) -> String {
        let mut out = HEAD.to_owned();
        for (name, text) in self.texts() {
            let _ = writeln!(out, "{name} = {}", quoted(text));
        }
        for (name, number) in geometry.numbers() {
            let _ = writeln!(out, "{name} = {number}");
        }
        out
    }

    /// The namespace and geometry of a label. `None`: it is no label, or a field is missing or of another type. Who reads a label
    /// believes it only if [`Namespace::digest`] of what it says is the name of the place where it stands.
    pub fn from_label(text: &str) -> Option<(Self, Geometry)> {
        if text.len() > MAX_LABEL_BYTES {
            return None;
        }
        let table: Table = text.parse().ok()?;
        let word = |name: &str| table.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| table.get(name).and_then(Value::as_integer);
        let namespace = Self {
            model: word("model")?,
            revision: word("revision")?,
            dtype: word("dtype")?,
            kv_layout: word("kv_layout")?,
            quantisation: word("quantisation")?,
            rope: word("rope")?,
            parallel: word("parallel")?,
            engine: word("engine")?,
            tenant: word("tenant")?,
        };
        let geometry = Geometry {
            block_bytes: number("block_bytes")?.try_into().ok()?,
            tokens_per_block: number("tokens_per_block")?.try_into().ok()?,
            blocks_per_chunk: number("blocks_per_chunk")?.try_into().ok()?,
            groups: number("groups")?.try_into().ok()?,
            hash_bytes: number("hash_bytes")?.try_into().ok()?,
        };
        Some((namespace, geometry))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: Geometry =
        Geometry { block_bytes: 2 << 20, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };

    #[test]
    fn a_label_is_readable() {
        let namespace = Namespace { tenant: "acme".to_owned(), model: "a/b".to_owned(), ..Namespace::default() };
        let label = namespace.to_label(&GEOMETRY);
        assert!(label.contains("\ntenant = \"acme\"\n") && label.contains("\nblock_bytes = 2097152\n"), "{label}");
    }

    #[test]
    fn what_is_no_label_is_refused() {
        let label = Namespace::default().to_label(&GEOMETRY);
        for wrong in
            ["", "tenant = \"x\"", &label.replace("hash_bytes = 32", "hash_bytes = 300"), &label[..label.len() - 16]]
        {
            assert_eq!(Namespace::from_label(wrong), None, "{wrong}");
        }
        assert_eq!(Namespace::from_label(&" ".repeat(MAX_LABEL_BYTES + 1)), None);
    }

    proptest! {
        #[test]
        fn a_label_says_all_that_the_digest_covers(texts in prop::collection::vec(any::<String>(), 9), block_bytes: u32, hash_bytes: u8) {
            let [model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant] =
                texts.try_into().expect("nine");
            let namespace =
                Namespace { model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant };
            let geometry = Geometry { block_bytes, hash_bytes, ..GEOMETRY };
            prop_assert_eq!(Namespace::from_label(&namespace.to_label(&geometry)), Some((namespace, geometry)));
        }
    }
}
