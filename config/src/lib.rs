//! TOML to a validated [`Config`].
//!
//! [`Config::load`] and [`Config::parse`] refuse what they do not know and tell all faults at once, each with its line,
//! key, value, bound and fix. All keys stand in one table (`keys.rs`, `copy_keys.rs`, `tier_keys.rs`, `object_keys.rs`, `tenant_keys.rs`), from which the parser, [`Config::to_toml`],
//! [`schema`] and [`example`] are made. A key's own bounds are checked where it is read (`form.rs`), what must hold
//! between keys after that (`relations.rs`, `object_relations.rs`, `watermarks.rs`). A [`Config`] is plain values: nothing here opens a tier or a region.
//!
//! [`Namespace::digest`] is what keeps the blocks of different models, layouts and tenants apart.

mod bounds;
mod copy;
mod copy_keys;
mod draft;
mod endpoint;
mod error;
mod example;
mod form;
mod geometry;
mod key;
mod keys;
mod label;
mod load;
mod location;
pub mod model;
pub mod namespace;
mod nearest;
mod object;
mod object_keys;
mod object_relations;
mod parse;
mod pool;
mod relations;
mod report;
mod schema;
mod secrets;
mod shares;
mod tenant_keys;
mod tier_keys;
mod units;
mod value;
mod watermarks;
mod words;
mod write;

pub use bounds::*;
pub use error::{ConfigError, Fault};
pub use example::example;
pub use label::MAX_LABEL_BYTES;
pub use location::ObjectLocation;
pub use model::*;
pub use namespace::Namespace;
pub use schema::schema;
pub use shares::Share;
