//! Any bytes as a trace, plain or compressed: a fault that names file and line, or requests. The first byte says how long blocks are: 0 has the
//! reader find out.
#![no_main]

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use replay::{Source as _, TraceFile};

#[path = "../../../src/failure.rs"]
mod failure;

#[path = "parts/replay.rs"]
mod replay;

/// A file in memory, written anew for each input.
static FILE: LazyLock<Mutex<File>> = LazyLock::new(|| {
    let fd = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    Mutex::new(File::from(fd))
});

/// Requests read from one input at most: a compressed one may hold any number of them.
const MOST: usize = 10_000;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, content)) = bytes.split_first() else { return };
    let mut file = FILE.lock().expect("nobody panics with it");
    file.set_len(0).expect("it can be cut");
    file.rewind().expect("it can be rewound");
    file.write_all(content).expect("it can be written");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut trace = match TraceFile::open(&path, u32::from(*first) * 16) {
        Ok(trace) => trace,
        Err(error) => return assert!(error.to_string().starts_with("/proc/self/fd/")),
    };
    assert!(trace.tokens_per_block() > 0);
    for _ in 0..MOST {
        match trace.next_arrival() {
            Ok(Some(arrival)) => assert!((0.0..=1e15).contains(&arrival.timestamp_ms)),
            Ok(None) => break,
            Err(error) => return assert!(error.to_string().starts_with("/proc/self/fd/")),
        }
    }
    assert_eq!(trace.progress().total, content.len() as u64);
});
