//! How long copies take. What engines count, paths and registration of a GPU's among it, stands in [`CopyStats`](crate::CopyStats), which
//! the connector publishes.

use metrics::{Histogram, histogram};

use crate::engine::Direction;

/// Name, label and meaning of the histogram of copies.
pub const COPY_SECONDS: (&str, &str, &str) = (
    "terrace_copy_seconds",
    "direction",
    "Time from the submission of a copy until its last byte is there, by CUDA until that is seen: to_host (a store), to_device (a load).",
);

/// Times of copies, by direction.
#[derive(Debug)]
pub(crate) struct CopyTimes {
    to_host: Histogram,
    to_device: Histogram,
}

impl CopyTimes {
    /// For the recorder that is in force now.
    pub fn new() -> Self {
        let (name, label, _) = COPY_SECONDS;
        Self { to_host: histogram!(name, label => "to_host"), to_device: histogram!(name, label => "to_device") }
    }

    pub const fn of(&self, direction: Direction) -> &Histogram {
        match direction {
            Direction::DeviceToHost => &self.to_host,
            Direction::HostToDevice => &self.to_device,
        }
    }
}
