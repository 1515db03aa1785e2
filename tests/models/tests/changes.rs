//! Blocks that another process finds in the shared table (`primary/src/shared/changes.rs`).
terrace_models::models!("changes", changes:
    what_is_accepted_is_what_was_seen { told_relaxed, read_relaxed, told_early, later_accepted }
    nobody_is_given_what_has_left { not_left }
);
