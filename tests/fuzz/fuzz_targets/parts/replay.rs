//! The trace reader, with what it finds beside it in its crate.

#[path = "../../../../src/replay/source.rs"]
mod source;
#[path = "../../../../src/replay/trace.rs"]
mod trace;

pub use source::Source;
pub use trace::TraceFile;
