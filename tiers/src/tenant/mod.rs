//! Whose blocks a tier keeps, and how: the namespace's digest; its label, the readable file that stands beside the blocks; and for
//! tenants with a key the layers that hide names ([`KeyedTier`]) and bytes ([`SealedTier`]) from whoever reads the store.
//!
//! Tenants never share blocks: each namespace has a pool, a region and tiers of its own, and its digest stands in front of all that is
//! stored. What another tenant asks for is a miss whether or not somebody has it, and takes as long.

mod keyed;
mod keyring;
mod label;
mod seal;
mod sealed;
mod worker;

use std::sync::Arc;

use terrace_config::Config;

pub use keyed::KeyedTier;
pub use keyring::{Keyring, LEAST_HASH_BYTES, TenantKey};
pub use label::{LABEL, read_label};
pub(crate) use label::{parse_label, write_label};
pub use seal::{ENVELOPE_BYTES, Random, Sealer, Unopened};
pub use sealed::SealedTier;

use crate::error::TierError;

/// Context of BLAKE3's key derivation. It never changes: stored blocks hang on it.
const SEALED_NAMESPACE: &str = "terrace 2026-11 namespace of sealed blocks";

/// The digest under which the sealed blocks of a namespace are stored: they have another length than plain ones, and share no file,
/// segment or log with them.
pub fn sealed_digest(namespace: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key(SEALED_NAMESPACE, namespace)
}

/// The namespace that a tier is opened for.
#[derive(Clone, Debug)]
pub struct TierNamespace {
    /// The digest in front of what is stored: the namespace's, or [`sealed_digest`] of it.
    pub digest: [u8; 32],
    /// Its fields in words, to be kept beside the blocks. `None`: none is written.
    pub label: Option<Arc<str>>,
    /// Keys that hide what is stored. `None`: blocks stand there as they are, under their hashes.
    pub keys: Option<Arc<Keyring>>,
}

impl TierNamespace {
    /// That of a configuration. Reads the keys of its tenant: files, and what commands print, for which it waits.
    ///
    /// # Errors
    /// [`TierError::Tenant`] if the tenant has a key to write with and it cannot be had.
    pub fn of(config: &Config) -> Result<Self, TierError> {
        let plain = config.namespace.digest(&config.geometry);
        let label = Some(config.namespace.to_label(&config.geometry).into());
        let tenant = config.tenants.iter().find(|tenant| tenant.name == config.namespace.tenant);
        let Some(tenant) = tenant else { return Ok(Self { digest: plain, label, keys: None }) };
        let digest = if tenant.encrypt { sealed_digest(&plain) } else { plain };
        let keys = Keyring::load(tenant, &digest, config.geometry.hash_bytes)?;
        Ok(Self { digest, label, keys: keys.map(Arc::new) })
    }
}

impl From<[u8; 32]> for TierNamespace {
    /// A namespace of which nothing but the digest is known.
    fn from(digest: [u8; 32]) -> Self {
        Self { digest, label: None, keys: None }
    }
}
