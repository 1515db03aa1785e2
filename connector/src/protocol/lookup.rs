//! [`super::Lookup`], the longest message of a step, without copies of its keys: written from where they lie, and read
//! where they came.

use std::borrow::Cow;

use serde::Deserialize;
use terrace_primary::Key;

use super::code::Body;
use super::error::ProtocolError;
use super::keys::COMMON_KEY_BYTES;
use super::message::Scan;

/// [`super::Lookup`] as it is sent. The same bytes as those of the message, which a test holds it to.
#[derive(Debug)]
pub(crate) struct LookupOut<'a> {
    pub request: u64,
    pub tiers: u32,
    pub lease: bool,
    pub queries: &'a [(Scan, &'a [Key])],
    /// Length of each key.
    pub key_bytes: usize,
}

/// [`super::Lookup`] as it comes.
#[derive(Debug, Deserialize)]
pub(crate) struct LookupIn<'a> {
    pub request: u64,
    pub tiers: u32,
    pub lease: bool,
    #[serde(borrow)]
    pub queries: Vec<QueryIn<'a>>,
}

/// [`super::Query`] as it comes.
#[derive(Debug, Deserialize)]
pub(crate) struct QueryIn<'a> {
    pub scan: u8,
    #[serde(borrow, with = "serde_bytes")]
    pub keys: Cow<'a, [u8]>,
}

impl Body for LookupOut<'_> {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let refuse = |why: &str| ProtocolError::Body { what: "Lookup", why: why.to_owned() };
        let keys: usize = self.queries.iter().map(|(_, keys)| keys.len()).sum();
        out.reserve(keys.saturating_mul(self.key_bytes).saturating_add(64 + 8 * self.queries.len()));
        put_array(4, out);
        put_number(self.request, out);
        put_number(self.tiers.into(), out);
        out.push(if self.lease { 0xc3 } else { 0xc2 });
        put_array(u32::try_from(self.queries.len()).map_err(|_| refuse("too many queries"))?, out);
        for (scan, keys) in self.queries {
            put_array(2, out);
            put_number((*scan as u8).into(), out);
            let bytes = keys.len().checked_mul(self.key_bytes).and_then(|bytes| u32::try_from(bytes).ok());
            put_bytes(bytes.ok_or_else(|| refuse("too many keys"))?, out);
            let start = out.len();
            for key in *keys {
                match key.as_bytes().as_array::<COMMON_KEY_BYTES>() {
                    // Of a length that is known: copied without a call.
                    Some(bytes) => out.extend_from_slice(bytes),
                    None => out.extend_from_slice(key.as_bytes()),
                }
            }
            if out.len() - start != keys.len() * self.key_bytes {
                return Err(refuse("keys of another length than the session's"));
            }
        }
        Ok(())
    }
}

/// The start of an array.
fn put_array(len: u32, out: &mut Vec<u8>) {
    match len {
        0..=15 => out.push(0x90 | len as u8),
        16..=0xffff => put(0xdc, &(len as u16).to_be_bytes(), out),
        _ => put(0xdd, &len.to_be_bytes(), out),
    }
}

/// The start of a string of bytes.
fn put_bytes(len: u32, out: &mut Vec<u8>) {
    match len {
        0..=0xff => put(0xc4, &[len as u8], out),
        0x100..=0xffff => put(0xc5, &(len as u16).to_be_bytes(), out),
        _ => put(0xc6, &len.to_be_bytes(), out),
    }
}

/// A number in its shortest form.
fn put_number(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xff => put(0xcc, &[number as u8], out),
        0x100..=0xffff => put(0xcd, &(number as u16).to_be_bytes(), out),
        0x1_0000..=0xffff_ffff => put(0xce, &(number as u32).to_be_bytes(), out),
        _ => put(0xcf, &number.to_be_bytes(), out),
    }
}

fn put(marker: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(marker);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Lookup, Query, decode, encode, keys_to_bytes};

    /// Both forms are the message: at each length and number where the form of MessagePack changes.
    #[test]
    fn the_same_bytes_as_the_message() {
        let key = |n: usize| Key::new(&[n as u8; 12], n as u32).expect("a key");
        let numbers = [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX];
        let shapes: [&[usize]; 6] = [&[], &[0], &[15, 16], &[4_095, 4_096], &[1; 15], &[1; 17]];
        for (request, shape) in numbers.iter().flat_map(|number| shapes.map(|shape| (*number, shape))) {
            let keys: Vec<Vec<Key>> = shape.iter().map(|count| (0..*count).map(key).collect()).collect();
            let scan = |at: usize| if at.is_multiple_of(2) { Scan::Prefix } else { Scan::Each };
            let queries: Vec<_> = keys.iter().enumerate().map(|(at, keys)| (scan(at), keys.as_slice())).collect();
            let (tiers, lease) = (request as u32, request % 2 == 0);
            let mut bytes = Vec::new();
            LookupOut { request, tiers, lease, queries: &queries, key_bytes: 16 }
                .put(&mut bytes)
                .expect("it is written");
            let owned = queries.iter().map(|(scan, keys)| {
                let mut bytes = Vec::new();
                keys_to_bytes(keys, &mut bytes);
                Query { scan: *scan as u8, keys: bytes }
            });
            let message = Lookup { request, tiers, lease, queries: owned.collect() };
            let mut expected = Vec::new();
            encode(&message, &mut expected).expect("it encodes");
            assert_eq!(bytes, expected, "{request} {shape:?}");
            let back: LookupIn<'_> = decode("Lookup", &bytes).expect("it decodes");
            assert_eq!((back.request, back.tiers, back.lease), (request, tiers, lease));
            let back = back.queries.into_iter().map(|query| {
                assert!(matches!(query.keys, Cow::Borrowed(_)), "nothing is copied");
                Query { scan: query.scan, keys: query.keys.into_owned() }
            });
            assert_eq!(back.collect::<Vec<_>>(), message.queries);
        }
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        let keys = [Key::new(&[1; 12], 0).expect("a key"), Key::new(&[1; 13], 0).expect("a key")];
        let lookup = LookupOut { request: 1, tiers: 1, lease: true, queries: &[(Scan::Each, &keys)], key_bytes: 16 };
        assert!(lookup.put(&mut Vec::new()).is_err());
    }
}
