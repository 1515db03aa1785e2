//! Every engine of this crate passes the suite.

use terrace_kernels::{CopyEngineKind, conformance};

#[test]
fn host_engine() {
    for (threads, seed) in [(1, 11), (2, 12), (4, 13)] {
        conformance::run(&|queue_entries| CopyEngineKind::Host { threads, queue_entries }.build().unwrap(), seed);
    }
}

#[test]
fn null_engine() {
    conformance::run(&|_| CopyEngineKind::Null.build().unwrap(), 21);
}

#[test]
fn impossible_host_engines_are_refused() {
    for (threads, queue_entries) in [(0, 8), (65, 8), (2, 0)] {
        assert!(CopyEngineKind::Host { threads, queue_entries }.build().is_err());
    }
}
