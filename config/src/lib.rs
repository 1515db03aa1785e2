//! TOML to a validated [`Config`].
pub mod model;
pub mod namespace;

pub use model::*;
pub use namespace::Namespace;
