//! Whose blocks a tier keeps: the namespace's digest, and its label, the readable file that stands beside the blocks.

mod label;

use std::sync::Arc;

use terrace_config::Config;

pub use label::{LABEL, read_label};
pub(crate) use label::{parse_label, write_label};

/// The namespace that a tier is opened for.
#[derive(Clone, Debug)]
pub struct TierNamespace {
    /// Its digest.
    pub digest: [u8; 32],
    /// Its fields in words, to be kept beside the blocks. `None`: none is written.
    pub label: Option<Arc<str>>,
}

impl TierNamespace {
    /// That of a configuration.
    pub fn of(config: &Config) -> Self {
        let digest = config.namespace.digest(&config.geometry);
        Self { digest, label: Some(config.namespace.to_label(&config.geometry).into()) }
    }
}

impl From<[u8; 32]> for TierNamespace {
    /// A namespace of which nothing but the digest is known.
    fn from(digest: [u8; 32]) -> Self {
        Self { digest, label: None }
    }
}
