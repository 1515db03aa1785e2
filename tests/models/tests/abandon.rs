//! Tickets that were given up, from the manager's thread to the shard's (`tiers/src/nvme/abandon.rs`).
terrace_models::models!("abandon", abandon:
    a_slot_that_is_read_unchanged_holds_the_old_block { added_unfenced, read_unfenced }
    what_counts_as_seen_was_taken { counted_first, seen_late }
);
