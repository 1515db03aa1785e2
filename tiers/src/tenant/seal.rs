//! The sealed block: AES-256-GCM over a block's bytes, and an envelope behind them that says how to open it. `docs/format.md` draws it.
//!
//! Each write has a key of its own, derived from the tenant's and 32 random bytes, so that a nonce is never used twice with a key:
//! the nonce is zero, and nothing has to be counted over restarts and nodes.

use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use terrace_primary::{Key, MAX_KEY_BYTES};

use super::keyring::Keyring;

/// Bytes of the envelope.
pub const ENVELOPE_BYTES: usize = 64;

const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 32;
/// Says that what stands before it is a sealed block of version 1.
const MAGIC: [u8; 8] = *b"TERRSEA1";
const _: () = assert!(ENVELOPE_BYTES == TAG_BYTES + SALT_BYTES + 8 + MAGIC.len());

/// Why a block did not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It is no sealed block of this version.
    NoSeal,
    /// It was sealed with a key that this tenant does not have (any more).
    OtherKey,
    /// Bytes, name, namespace or length are not those that were sealed.
    Changed,
}

/// Where random bytes come from. False: none can be had.
pub type Random = dyn Fn(&mut [u8; SALT_BYTES]) -> bool + Send + Sync;

/// Seals and opens the blocks of one namespace.
#[derive(Clone)]
pub struct Sealer {
    namespace: [u8; 32],
    keys: Arc<Keyring>,
    random: Arc<Random>,
}

impl Sealer {
    /// With the system's random numbers.
    pub fn new(namespace: [u8; 32], keys: Arc<Keyring>) -> Self {
        let system = SystemRandom::new();
        Self::with_random(namespace, keys, Arc::new(move |salt| system.fill(salt).is_ok()))
    }

    /// With random numbers that are given. **No two calls may give the same.**
    pub fn with_random(namespace: [u8; 32], keys: Arc<Keyring>, random: Arc<Random>) -> Self {
        Self { namespace, keys, random }
    }

    /// Seals the block in `bytes`, all but the last [`ENVELOPE_BYTES`], and writes the envelope there. False: there is no key, no room, or
    /// no random number; `bytes` then hold anything.
    #[must_use]
    pub fn seal(&self, name: &Key, bytes: &mut [u8]) -> bool {
        let Some(tenant) = self.keys.first() else { return false };
        let Some((block, envelope)) = bytes.split_last_chunk_mut::<ENVELOPE_BYTES>() else { return false };
        let mut salt = [0; SALT_BYTES];
        if !(self.random)(&mut salt) {
            return false;
        }
        let Some(key) = one_time(&tenant.seal_key(&salt)) else { return false };
        let aad = self.bound(&tenant.id(), name, block.len());
        let Ok(tag) = key.seal_in_place_separate_tag(nonce(), Aad::from(aad), block) else { return false };
        let parts = [tag.as_ref(), &salt, &tenant.id(), &MAGIC];
        envelope.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        true
    }

    /// Opens what [`Sealer::seal`] made of the block `name`: the block, at the start of `bytes`. Where it fails nothing in `bytes` may be used.
    ///
    /// # Errors
    /// Anything but those very bytes under that name, in this namespace.
    pub fn open<'a>(&self, name: &Key, bytes: &'a mut [u8]) -> Result<&'a mut [u8], Unopened> {
        let (rest, magic) = bytes.split_last_chunk_mut::<8>().ok_or(Unopened::NoSeal)?;
        if *magic != MAGIC {
            return Err(Unopened::NoSeal);
        }
        let (rest, id) = rest.split_last_chunk_mut::<8>().ok_or(Unopened::NoSeal)?;
        let (block, salt) = rest.split_last_chunk_mut::<SALT_BYTES>().ok_or(Unopened::NoSeal)?;
        let tenant = self.keys.keys().iter().find(|tenant| tenant.id() == *id).ok_or(Unopened::OtherKey)?;
        let key = one_time(&tenant.seal_key(salt)).ok_or(Unopened::Changed)?;
        let aad = self.bound(id, name, block.len().saturating_sub(TAG_BYTES));
        key.open_in_place(nonce(), Aad::from(aad), block).map_err(|_| Unopened::Changed)
    }

    /// What a seal holds together with the bytes: key id, namespace (and with it the geometry), name and length.
    fn bound(&self, id: &[u8; 8], name: &Key, block_bytes: usize) -> [u8; BOUND_BYTES] {
        let name = name.as_bytes();
        let mut bound = [0; BOUND_BYTES];
        let parts = MAGIC.iter().chain(id).chain(&self.namespace).copied();
        let parts =
            parts.chain((block_bytes as u64).to_le_bytes()).chain([name.len() as u8]).chain(name.iter().copied());
        bound.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bound
    }
}

const BOUND_BYTES: usize = 8 + 8 + 32 + 8 + 1 + MAX_KEY_BYTES;

fn one_time(key: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new)
}

/// The nonce of a key that is used once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::super::keyring::TenantKey;
    use super::*;

    const NAMESPACE: [u8; 32] = [7; 32];

    fn sealer(secrets: &[&[u8]]) -> Sealer {
        let keys = secrets.iter().map(|secret| TenantKey::derive(secret, &NAMESPACE, true)).collect();
        Sealer::new(NAMESPACE, Arc::new(Keyring::new(keys, true).expect("keys")))
    }

    fn name(byte: u8) -> Key {
        Key::new(&[byte; 32], 0).expect("a key")
    }

    fn sealed(sealer: &Sealer, block: &[u8]) -> Vec<u8> {
        let mut bytes = [block, &[0; ENVELOPE_BYTES]].concat();
        assert!(sealer.seal(&name(1), &mut bytes));
        bytes
    }

    #[test]
    fn what_was_sealed_opens_and_shows_nothing() {
        let sealer = sealer(&[b"first"]);
        let block = [5; 1000];
        let (one, two) = (sealed(&sealer, &block), sealed(&sealer, &block));
        assert!(one[..1000] != two[..1000] && one.windows(8).all(|window| window != [5; 8]));
        for mut bytes in [one, two] {
            assert_eq!(sealer.open(&name(1), &mut bytes), Ok(&mut { block }[..]));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let sealer = sealer(&[b"first"]);
        let good = sealed(&sealer, &[5; 100]);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(sealer.open(&name(1), &mut bytes).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(sealer.open(&name(1), &mut good[..len].to_vec()).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn another_name_namespace_or_length_does_not_open() {
        let here = sealer(&[b"first"]);
        let good = sealed(&here, &[5; 100]);
        assert_eq!(here.open(&name(2), &mut good.clone()), Err(Unopened::Changed));
        // The same keys, told that they are another namespace's.
        let there = Sealer { namespace: [8; 32], ..here.clone() };
        assert_eq!(there.open(&name(1), &mut good.clone()), Err(Unopened::Changed));
        assert_eq!(here.open(&name(1), &mut [&[0][..], &good].concat()), Err(Unopened::Changed));
    }

    #[test]
    fn keys_rotate() {
        let old = sealed(&sealer(&[b"old"]), &[5; 100]);
        let rotated = sealer(&[b"new", b"old"]);
        assert!(rotated.open(&name(1), &mut old.clone()).is_ok());
        let new = sealed(&rotated, &[6; 100]);
        assert!(sealer(&[b"new"]).open(&name(1), &mut new.clone()).is_ok(), "the first writes");
        assert_eq!(sealer(&[b"new"]).open(&name(1), &mut old.clone()), Err(Unopened::OtherKey));
    }

    #[test]
    fn without_random_numbers_nothing_is_sealed() {
        let Sealer { keys, .. } = sealer(&[b"first"]);
        let sealer = Sealer::with_random(NAMESPACE, keys, Arc::new(|_| false));
        assert!(!sealer.seal(&name(1), &mut [0; 200]));
    }
}
