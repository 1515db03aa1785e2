//! The namespace: everything that makes the bytes of two blocks interchangeable.

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
