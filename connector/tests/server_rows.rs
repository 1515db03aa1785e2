//! Role "tier": the daemon copies rows of the engine's own region.

#[path = "common/daemon.rs"]
mod daemon;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use daemon::*;
use rustix::fs::{MemfdFlags, memfd_create};
use terrace_connector::protocol::*;

const ROWS: u32 = 16;

/// A region of an engine: a file in memory.
fn region() -> File {
    let file = File::from(memfd_create("rows", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(u64::from(ROWS) * u64::from(BLOCK_BYTES)).expect("its length");
    file
}

fn offset(row: u32) -> u64 {
    u64::from(row) * u64::from(BLOCK_BYTES)
}

fn put(file: &File, row: u32, n: u32) {
    file.write_all_at(&block(n), offset(row)).expect("a row");
}

fn get(file: &File, row: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    file.read_exact_at(&mut bytes, offset(row)).expect("a row");
    bytes
}

fn store(client: &mut Client, job: u64, range: std::ops::Range<u32>, rows: std::ops::Range<u32>) {
    let message = StoreRows { request: 1, job, keys: keys(range), rows: numbers_to_bytes(rows) };
    client.raw.send(Kind::StoreRows, FrameFlags::ONE_WAY, Some(&message));
}

fn load(client: &mut Client, job: u64, range: std::ops::Range<u32>, rows: std::ops::Range<u32>) {
    let message = LoadRows { request: 2, job, keys: keys(range), rows: numbers_to_bytes(rows) };
    client.raw.send(Kind::LoadRows, FrameFlags::ONE_WAY, Some(&message));
}

fn done(client: &mut Client, job: u64) -> Vec<u8> {
    let mut all = Vec::new();
    until("rows are copied", || {
        all.extend(client.end_step(&EndStep::default()).rows);
        all.iter().any(|done| done.job == job)
    });
    all.into_iter().find(|done| done.job == job).map(|done| done.ok).expect("it was found")
}

#[test]
fn rows_go_down_and_come_back_from_a_tier() {
    let daemon = Daemon::new(16, "[limits]\npromotion_share = 0.5\n[[tier]]\ntype = \"memory\"\ncapacity = \"4MiB\"\n");
    let file = region();
    let mut client = Client::tier(&daemon.socket(), "e", ROWS, &file).expect("it is taken");
    assert!(client.region.is_none(), "it maps nothing");
    client.await_slots();
    (0..12).for_each(|n| put(&file, n, n));
    store(&mut client, 1, 0..12, 0..12);
    assert_eq!(done(&mut client, 1), [1; 12]);
    store(&mut client, 2, 8..14, 8..14);
    assert_eq!(done(&mut client, 2), [1; 6], "what is there is done");
    until("all is stored below", || value(&client.stats(), "terrace_tier_blocks{tier=\"memory\"}") == 14.0);
    client.raw.send::<()>(Kind::Reset, FrameFlags::REQUEST, None);
    client.raw.receive().expect("a reply");
    (0..ROWS).for_each(|row| put(&file, row, 999));
    // More than may be promoted at once, one that is nowhere, in other rows.
    load(&mut client, 3, 1..13, 4..16);
    assert_eq!(done(&mut client, 3), [1; 12]);
    (1..12).for_each(|n| assert_eq!(get(&file, n + 3), block(n), "block {n}"));
    assert_eq!(get(&file, 0), block(999));
    load(&mut client, 4, 40..41, 0..1);
    assert_eq!(done(&mut client, 4), [0]);
    for name in [READERS, WRITING, "terrace_requests"] {
        daemon.await_stat(name, 0.0);
    }
}

#[test]
fn a_file_that_is_cut_off_fails_its_rows_and_nothing_else() {
    let daemon = Daemon::new(16, "");
    let file = region();
    let mut client = Client::tier(&daemon.socket(), "e", ROWS, &file).expect("it is taken");
    client.await_slots();
    (0..8).for_each(|n| put(&file, n, n));
    file.set_len(offset(4) + 100).expect("cut off");
    store(&mut client, 1, 0..8, 0..8);
    assert_eq!(done(&mut client, 1), [1, 1, 1, 1, 0, 0, 0, 0]);
    load(&mut client, 2, 0..4, 2..6);
    assert_eq!(done(&mut client, 2), [1, 1, 0, 0]);
    assert_eq!(file.metadata().expect("a file").len(), offset(4) + 100, "it is not made longer");
    assert_eq!((get(&file, 2), get(&file, 3)), (block(0), block(1)));
    for name in [READERS, WRITING] {
        daemon.await_stat(name, 0.0);
    }
    // Failed stores are not readable.
    load(&mut client, 3, 4..8, 0..4);
    assert_eq!(done(&mut client, 3), [0; 4]);
}

#[test]
fn what_is_no_region_is_refused() {
    let daemon = Daemon::new(16, "");
    let socket = daemon.socket();
    let refused = |file: File, rows: u32| Client::tier(&socket, "e", rows, file).map(|_| ()).err();
    assert_eq!(refused(region(), ROWS + 1), Some(ErrorCode::Invalid), "it is too short");
    assert_eq!(refused(region(), 0), Some(ErrorCode::Invalid));
    assert_eq!(refused(File::open("/dev/null").expect("a file"), ROWS), Some(ErrorCode::Invalid), "a device");
    assert_eq!(refused(File::open("/proc/self/status").expect("a file"), 1), Some(ErrorCode::Invalid), "no tmpfs");
    let file = region();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let read_only = OpenOptions::new().read(true).open(path).expect("once more");
    assert_eq!(refused(read_only, ROWS), Some(ErrorCode::Invalid), "it cannot be written");
    let mut client = Client::tier(&socket, "e", ROWS, region()).expect("a good one");
    store(&mut client, 1, 0..2, 15..17);
    assert_eq!(client.raw.refusal(), ErrorCode::Invalid);
    store(&mut client, 1, 0..3, 0..2);
    assert_eq!(client.raw.refusal(), ErrorCode::Invalid);
}

#[test]
fn rows_of_an_engine_that_closed_are_not_published() {
    let daemon = Daemon::new(16, "");
    let file = region();
    let mut client = Client::tier(&daemon.socket(), "e", ROWS, &file).expect("it is taken");
    client.await_slots();
    (0..8).for_each(|n| put(&file, n, n));
    // What was told as done stays; of what was given last nothing is, or all that was copied before the end was seen.
    store(&mut client, 1, 0..4, 0..4);
    assert_eq!(done(&mut client, 1), [1; 4]);
    store(&mut client, 2, 4..8, 4..8);
    load(&mut client, 3, 40..44, 4..8);
    drop(client);
    // From here on the rows are the engine's again.
    (0..8).for_each(|n| put(&file, n, 999));
    for name in ["terrace_sessions", "terrace_requests", WRITING, READERS] {
        daemon.await_stat(name, 0.0);
    }
    let mut again = loop {
        match Client::tier(&daemon.socket(), "e", ROWS, &file) {
            Ok(client) => break client,
            Err(code) => assert_eq!(code, ErrorCode::Retry, "only copies that run are waited for"),
        }
    };
    (0..8).for_each(|row| assert_eq!(get(&file, row), block(999), "no row is written any more"));
    assert_eq!(again.answers(0..4), [hit(); 4]);
    let mut other = Client::open(&daemon.socket(), &scheduler("f", 0));
    let found = other.lookup(1, Scan::Each, keys(0..8));
    let held = (0..8).zip(answers(&found)).filter(|(_, answer)| *answer == hit()).map(|(n, _)| n);
    for (n, slot) in held.zip(numbers(&found.slots)) {
        assert_eq!(other.read(slot), block(n), "whatever is readable is what was stored");
    }
}
