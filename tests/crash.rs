//! kill -9 at random moments of a replay, fifty times on one directory: the store opens, what was published hits,
//! no wrong block is loaded and the capacity holds.

mod common;

use std::time::Duration;

use common::{Replay, allocated_bytes, assert_sound, seed};

const KILLS: u64 = 50;
const BLOCK_BYTES: u64 = 16 << 10;
const NVME_BLOCKS: u64 = 3_000;
/// A block's file: payload and footer.
const FILE_BYTES: u64 = BLOCK_BYTES + 4096;

#[test]
fn killed_at_any_moment_the_store_opens_and_serves_right_bytes() {
    let root = tempfile::tempdir().expect("temporary directory");
    let base = seed();
    let mut hits_after_a_kill = 0;
    for round in 0..KILLS {
        let mut state = base.wrapping_add(round);
        let delay_ms = 30 + common::next(&mut state) % 700;
        let mut victim = Replay::new(root.path())
            .args(["--block-bytes", &BLOCK_BYTES.to_string(), "--nvme-blocks", &NVME_BLOCKS.to_string()])
            .args(["--primary-blocks", "600", "--seed", "1", "--limit", "100000"])
            .spawn();
        std::thread::sleep(Duration::from_millis(delay_ms));
        victim.kill().expect("kill -9");
        victim.wait().expect("the killed process is reaped");

        let report = Replay::new(root.path())
            .args(["--block-bytes", &BLOCK_BYTES.to_string(), "--nvme-blocks", &NVME_BLOCKS.to_string()])
            .args(["--primary-blocks", "600", "--seed", "1", "--limit", "40"])
            .run();
        let context = format!("TERRACE_SEED={base}, round {round}, killed after {delay_ms} ms: {report:#}");
        assert_sound(&report, 40, &context);
        hits_after_a_kill += report["hits"]["nvme"].as_u64().expect("hits.nvme");
        // On the disk, not by the tier's own count: until the files are reconciled with a catalog that the kill left behind them, it
        // counts blocks whose files are gone as well.
        let on_disk = allocated_bytes(root.path(), "blk");
        assert!(on_disk <= NVME_BLOCKS * FILE_BYTES, "{on_disk} bytes of block files on disk; {context}");
    }
    assert!(hits_after_a_kill > 0, "nothing that was published before a kill was ever found again");
}
