//! The trace of a run: a digest that tells two runs apart, and on demand its lines.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::rng::splitmix;

/// Everything that happened, folded into 64 bits. Two runs of one seed must end with the same digest: otherwise something
/// below reads a wall clock, a thread's progress or an unordered table, and no failure could be replayed.
/// Clones share the trace.
#[derive(Clone, Debug, Default)]
pub struct SharedTrace(Arc<Mutex<Trace>>);

#[derive(Debug, Default)]
struct Trace {
    digest: u64,
    lines: u64,
    line: String,
    print: bool,
}

impl SharedTrace {
    /// An empty trace; `print` writes each line to stderr as well.
    pub fn new(print: bool) -> Self {
        Self(Arc::new(Mutex::new(Trace { print, ..Trace::default() })))
    }

    /// Adds one line.
    pub fn add(&self, line: fmt::Arguments<'_>) {
        let trace = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        trace.line.clear();
        let _ = trace.line.write_fmt(line);
        if trace.print {
            eprintln!("{:>7}  {}", trace.lines, trace.line);
        }
        trace.lines += 1;
        for chunk in trace.line.as_bytes().chunks(8) {
            let word = chunk.iter().fold(0_u64, |word, byte| (word << 8) | u64::from(*byte));
            trace.digest = splitmix(trace.digest ^ word);
        }
    }

    /// The digest so far.
    pub fn digest(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).digest
    }
}
