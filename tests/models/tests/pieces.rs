//! The registration of host memory by several threads behind the engines (`kernels/src/cuda/pins/pieces.rs`).
terrace_models::models!("pieces", pieces:
    what_is_registered_is_known_to_the_driver { set_relaxed, read_relaxed, taken_twice }
);
