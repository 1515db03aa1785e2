//! Terrace's copy engines as a C library, `libterrace_copy.so`. `include/terrace_copy.h` is its documentation.
//!
//! ```text
//! entry/ (C: pointers, codes, no panic gets out) -> registry (open engines) -> session (one engine, safe code) -> terrace_kernels
//! ```
//!
//! No handle is ever a pointer: a wrong one is found out, not followed.

pub mod abi;
mod entry;
mod handle;
mod jobs;
mod open;
mod refusal;
mod registry;
mod session;

pub use entry::*;

#[cfg(test)]
mod tests;
