//! The queue between the submitter and the threads of the host engine (`kernels/src/host/queue.rs`).

/// What the queue finds in its crate.
#[allow(dead_code, reason = "fields that the models do not look at")]
mod engine {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CopyId(pub u64);

    #[derive(Debug)]
    pub struct CopyDone {
        pub id: CopyId,
        pub result: Result<(), ()>,
        pub bytes: u64,
    }
}

terrace_models::models!("queue", queue:
    who_waited_sees_the_bytes { done_relaxed, is_done_relaxed, left_relaxed, reported_late, waiter_not_woken, close_not_told }
    an_ordered_job_sees_the_bytes_of_the_one_before { order_ignored }
);
