//! Store jobs that were given up, from the manager's thread to the object tier's (`tiers/src/object/given_up.rs`).
terrace_models::models!("given_up", given_up:
    a_copy_that_counts_is_of_the_old_block { set_unfenced, read_unfenced }
);
