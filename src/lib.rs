//! Terrace.
