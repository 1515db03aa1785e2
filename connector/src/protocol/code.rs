//! Bodies as MessagePack: a struct is an array of its fields in order.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::error::ProtocolError;

/// What can be written as the body of a frame.
pub(crate) trait Body {
    /// Appends it to `out`, where something may be left of it if it fails.
    fn put(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError>;
}

impl<T: Serialize> Body for T {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        encode(self, out)
    }
}

/// Appends `message` to `out`.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    rmp_serde::encode::write(out, message)
        .map_err(|error| ProtocolError::Body { what: std::any::type_name::<T>(), why: error.to_string() })
}

/// The message in `body`, all of it. Lengths are checked against what is there before anything is allocated for them.
pub fn decode<'a, T: Deserialize<'a>>(what: &'static str, body: &'a [u8]) -> Result<T, ProtocolError> {
    let refuse = |why: String| ProtocolError::Body { what, why };
    // From a slice: strings of bytes are copied once.
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(body);
    deserializer.set_max_depth(16);
    let message = T::deserialize(&mut deserializer).map_err(|error| refuse(error.to_string()))?;
    match IgnoredAny::deserialize(&mut deserializer) {
        // Not even a marker is left.
        Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => Ok(message),
        _ => Err(refuse("bytes follow it".to_owned())),
    }
}
