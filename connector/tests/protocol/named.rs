//! A message as JSON with the names of its fields, for readers in other languages: byte strings are `{"hex": "..."}`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, json};

use super::frames::Message;
use super::hex;

/// The name of the message's struct, and the message; null for an empty body.
pub fn named(message: &Message) -> (&'static str, Value) {
    match message {
        Message::Empty => ("Empty", Value::Null),
        Message::Hello(message) => ("Hello", fields(message)),
        Message::HelloReply(message) => ("HelloReply", fields(message)),
        Message::Lookup(message) => ("Lookup", fields(message)),
        Message::LookupReply(message) => ("LookupReply", fields(message)),
        Message::Lease(message) => ("Lease", fields(message)),
        Message::LeaseReply(message) => ("LeaseReply", fields(message)),
        Message::PrepareStore(message) => ("PrepareStore", fields(message)),
        Message::PrepareStoreReply(message) => ("PrepareStoreReply", fields(message)),
        Message::EndStep(message) => ("EndStep", fields(message)),
        Message::EndStepReply(message) => ("EndStepReply", fields(message)),
        Message::Complete(message) => ("Complete", fields(message)),
        Message::Pin(message) => ("Pin", fields(message)),
        Message::PinReply(message) => ("PinReply", fields(message)),
        Message::Unpin(message) => ("Unpin", fields(message)),
        Message::StoreRows(message) => ("StoreRows", fields(message)),
        Message::LoadRows(message) => ("LoadRows", fields(message)),
        Message::StatsReply(message) => ("StatsReply", fields(message)),
        Message::Goodbye(message) => ("Goodbye", fields(message)),
        Message::Attach(message) => ("Attach", fields(message)),
        Message::AttachReply(message) => ("AttachReply", fields(message)),
        Message::Copy(message) => ("Copy", fields(message)),
        Message::Copied(message) => ("Copied", fields(message)),
        Message::ErrorReply(message) => ("ErrorReply", fields(message)),
    }
}

fn fields<T: serde::Serialize>(message: &T) -> Value {
    let named = rmp_serde::to_vec_named(message).expect("a message that can be written");
    rmp_serde::from_slice::<Named>(&named).expect("what was just written").0
}

/// Any MessagePack value as JSON.
struct Named(Value);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a message")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("JSON has no such number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(json!({ "hex": hex(value) }))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Named(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Named(value))) = entries.next_entry::<String, Named>()? {
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}
