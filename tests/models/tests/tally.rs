//! The backing of a region by several threads behind whoever uses what is ready (`primary/src/region/tally.rs`).
terrace_models::models!("tally", tally:
    what_is_ready_is_backed { ready_relaxed, read_relaxed, gaps, taken_twice }
);
