//! The table of keys as JSON Schema, for editors and checks outside of Terrace.

use serde_json::{Map, Value, json};

use crate::bounds::{MAX_TENANTS, MAX_TIERS};
use crate::draft::Kind;
use crate::key::{Key, Preset};
use crate::keys::SECTIONS;
use crate::tenant_keys::{TENANT, TENANT_DOC, TENANT_KEYS};
use crate::tier_keys::{TIER, TIER_DOC, tier_keys};

/// The configuration file as JSON Schema (draft 2020-12). What holds between keys is told by
/// [`Config::parse`](crate::Config::parse) alone, but for `capacity` and `blocks` of which exactly one is written.
pub fn schema() -> Value {
    let mut properties = Map::new();
    for section in &SECTIONS {
        let mut table = table(section.doc, section.keys.iter());
        if section.name == "primary" {
            table["oneOf"] = either_size();
        }
        properties.insert(section.name.to_owned(), table);
    }
    let kinds: Vec<Value> = Kind::ALL.into_iter().map(tier).collect();
    let tiers = json!({ "description": TIER_DOC, "type": "array", "maxItems": MAX_TIERS, "items": { "oneOf": kinds } });
    properties.insert(TIER.to_owned(), tiers);
    let tenant = table(TENANT_DOC, TENANT_KEYS.iter());
    let tenants = json!({ "description": TENANT_DOC, "type": "array", "maxItems": MAX_TENANTS, "items": tenant });
    properties.insert(TENANT.to_owned(), tenants);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Terrace configuration",
        "type": "object",
        "properties": properties,
        "required": ["primary"],
        "additionalProperties": false,
    })
}

fn tier(kind: Kind) -> Value {
    let mut tier = table(TIER_DOC, tier_keys(Some(kind)));
    tier["properties"]["type"]["const"] = json!(kind.word());
    tier["oneOf"] = either_size();
    tier
}

fn either_size() -> Value {
    json!([{ "required": ["capacity"] }, { "required": ["blocks"] }])
}

fn table<S: 'static>(doc: &str, keys: impl Iterator<Item = &'static Key<S>>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        let mut property = key.form.schema();
        property["description"] = json!(key.doc);
        match &key.preset {
            Preset::Is(value) => property["default"] = value.to_json(),
            // Not required by itself: `blocks` may stand in its place.
            Preset::Required(_) if key.name == "capacity" => {}
            Preset::Required(_) => required.push(key.name),
            Preset::Unset(_) => {}
        }
        properties.insert(key.name.to_owned(), property);
    }
    json!({
        "description": doc, "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}
