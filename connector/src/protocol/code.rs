//! Bodies as MessagePack: a struct is an array of its fields in order.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ProtocolError;

/// Appends `message` to `out`.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
    rmp_serde::encode::write(out, message)
        .map_err(|error| ProtocolError::Body { what: std::any::type_name::<T>(), why: error.to_string() })
}

/// The message in `body`, all of it. What is announced in it is not allocated before it is there.
pub fn decode<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ProtocolError> {
    let refuse = |why: String| ProtocolError::Body { what, why };
    let mut rest = body;
    let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
    deserializer.set_max_depth(16);
    let message = T::deserialize(&mut deserializer).map_err(|error| refuse(error.to_string()))?;
    if rest.is_empty() { Ok(message) } else { Err(refuse(format!("{} bytes follow it", rest.len()))) }
}
