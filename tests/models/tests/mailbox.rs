//! The two queues between a port and its shard's thread, and who wakes whom (`tiers/src/nvme/mailbox.rs`, its loop included).
terrace_models::models!("mailbox", mailbox:
    a_command_is_not_slept_over { unannounced, not_woken, looked_first }
    a_ticket_that_is_given_up_is_seen { abandons_not_looked_at, list_not_taken }
    a_scan_that_was_held_goes_on { hold_not_looked_at }
    who_sees_the_end_sees_all_events { }
);
