//! The namespace: everything that makes the bytes of two blocks interchangeable.

use crate::geometry::Geometry;

/// Fields that are part of a block's identity beside its key. Two engines share blocks only if all are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Model name or path.
    pub model: String,
    /// Model revision or checkpoint digest.
    pub revision: String,
    /// Element type of the KV cache, `bfloat16`.
    pub dtype: String,
    /// Memory layout of one block, `HND`.
    pub kv_layout: String,
    /// Quantisation and its scales.
    pub quantisation: String,
    /// RoPE and every other setting that changes KV values.
    pub rope: String,
    /// Parallel layout and rank, or `canonical`.
    pub parallel: String,
    /// Engine name and the version of its KV format.
    pub engine: String,
    /// Tenant.
    pub tenant: String,
}

impl Namespace {
    /// The digest that stands for this namespace and `geometry` in front of every stored key: two engines share blocks
    /// exactly if it is equal.
    ///
    /// ```text
    /// digest  = BLAKE3(field("terrace namespace", "1") fields)            32 bytes, no key
    /// fields  = field("model", ..) field("revision", ..) field("dtype", ..) field("kv_layout", ..)
    ///           field("quantisation", ..) field("rope", ..) field("parallel", ..) field("engine", ..)
    ///           field("tenant", ..) field("block_bytes", ..) field("tokens_per_block", ..)
    ///           field("blocks_per_chunk", ..) field("groups", ..) field("hash_bytes", ..)
    /// field(label, value) = u64le(bytes of label) label u64le(bytes of value) value
    /// ```
    ///
    /// The values of the namespace are UTF-8, empty where not set; the geometry's are `u64` little-endian. Labels and
    /// lengths keep one field from reading as another. Any change of this formula makes all stored blocks unreachable:
    /// it raises the "1", and the golden vectors of the tests stay as they are.
    pub fn digest(&self, geometry: &Geometry) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        field(&mut hasher, "terrace namespace", b"1");
        for (label, text) in self.texts() {
            field(&mut hasher, label, text.as_bytes());
        }
        for (label, number) in geometry.numbers() {
            field(&mut hasher, label, &number.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Every field with its name, in the order of the digest.
    pub(crate) fn texts(&self) -> [(&'static str, &str); 9] {
        // Taken apart by name, so that a field added later cannot be forgotten here.
        let Self { model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant } = self;
        [
            ("model", model),
            ("revision", revision),
            ("dtype", dtype),
            ("kv_layout", kv_layout),
            ("quantisation", quantisation),
            ("rope", rope),
            ("parallel", parallel),
            ("engine", engine),
            ("tenant", tenant),
        ]
    }
}

impl Geometry {
    /// Every field with its name, in the order of the digest.
    pub(crate) fn numbers(&self) -> [(&'static str, u64); 5] {
        let Self { block_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes } = self;
        [
            ("block_bytes", u64::from(*block_bytes)),
            ("tokens_per_block", u64::from(*tokens_per_block)),
            ("blocks_per_chunk", u64::from(*blocks_per_chunk)),
            ("groups", u64::from(*groups)),
            ("hash_bytes", u64::from(*hash_bytes)),
        ]
    }
}

fn field(hasher: &mut blake3::Hasher, label: &str, value: &[u8]) {
    for part in [label.as_bytes(), value] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry =
        Geometry { block_bytes: 2 << 20, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };

    fn hex(digest: [u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Made by another implementation of BLAKE3 and of the formula. They never change: stored blocks hang on them.
    #[test]
    fn golden_vectors() {
        assert_eq!(
            hex(Namespace::default().digest(&GEOMETRY)),
            "395d5439a7969b33e09d8ebc05c5de3b016ef0a70411f0892fa61e7d250a03de"
        );
        let namespace = Namespace {
            model: "meta-llama/Llama-3.1-8B".to_owned(),
            dtype: "bfloat16".to_owned(),
            tenant: "café".to_owned(),
            ..Namespace::default()
        };
        let geometry = Geometry { block_bytes: 16384, blocks_per_chunk: 2, groups: 2, ..GEOMETRY };
        assert_eq!(
            hex(namespace.digest(&geometry)),
            "be491643a13c493c280fbd26eb045d73c1bf016edc0462ceec9fe899a1619d36"
        );
    }

    #[test]
    fn every_field_counts_in_its_own_place() {
        let fields: [fn(&mut Namespace) -> &mut String; 9] = [
            |n| &mut n.model,
            |n| &mut n.revision,
            |n| &mut n.dtype,
            |n| &mut n.kv_layout,
            |n| &mut n.quantisation,
            |n| &mut n.rope,
            |n| &mut n.parallel,
            |n| &mut n.engine,
            |n| &mut n.tenant,
        ];
        let shapes: [fn(&mut Geometry); 5] = [
            |g| g.block_bytes += 1,
            |g| g.tokens_per_block += 1,
            |g| g.blocks_per_chunk += 1,
            |g| g.groups += 1,
            |g| g.hash_bytes += 1,
        ];
        let mut digests = vec![Namespace::default().digest(&GEOMETRY)];
        for field in fields {
            // The same text in another field, and a longer one, are other namespaces.
            for text in ["x", "xx", "x\0"] {
                let mut namespace = Namespace::default();
                *field(&mut namespace) = text.to_owned();
                digests.push(namespace.digest(&GEOMETRY));
            }
        }
        for shape in shapes {
            let mut geometry = GEOMETRY;
            shape(&mut geometry);
            digests.push(Namespace::default().digest(&geometry));
        }
        let total = digests.len();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), total);
    }
}
