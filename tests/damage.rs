//! Files damaged at rest: every damage ends in a miss, a counter and a log line; never in a wrong block.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{Replay, assert_sound, files, next, seed, tier_counter};

const ARGUMENTS: [&str; 10] =
    ["--block-bytes", "16384", "--nvme-blocks", "4000", "--primary-blocks", "500", "--seed", "3", "--limit", "60"];
const PAYLOAD_BYTES: u64 = 16384;
const FOOTER_BYTES: u64 = 4096;

/// Damages every block file in one way, each at a place drawn from the seed, and returns how many it touched.
type Damage = fn(&[PathBuf], &mut u64) -> usize;

fn flip_bit(path: &Path, from: u64, to: u64, state: &mut u64) {
    let file = fs::File::options().read(true).write(true).open(path).expect("block file");
    let at = from + next(state) % (to - from);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    byte[0] ^= 1 << (next(state) % 8);
    file.write_all_at(&byte, at).expect("write");
}

fn flip_payload(paths: &[PathBuf], state: &mut u64) -> usize {
    paths.iter().for_each(|path| flip_bit(path, 0, PAYLOAD_BYTES, state));
    paths.len()
}

/// The part of the footer that carries meaning; the rest of its 4 KiB is zero and covered by its length.
fn flip_footer(paths: &[PathBuf], state: &mut u64) -> usize {
    paths.iter().for_each(|path| flip_bit(path, PAYLOAD_BYTES, PAYLOAD_BYTES + 128, state));
    paths.len()
}

fn truncate(paths: &[PathBuf], state: &mut u64) -> usize {
    for path in paths {
        let length = next(state) % (PAYLOAD_BYTES + FOOTER_BYTES);
        fs::File::options().write(true).open(path).expect("block file").set_len(length).expect("truncate");
    }
    paths.len()
}

fn swap_pairs(paths: &[PathBuf], _: &mut u64) -> usize {
    for pair in paths.chunks_exact(2) {
        let aside = pair[0].with_extension("aside");
        fs::rename(&pair[0], &aside).expect("rename");
        fs::rename(&pair[1], &pair[0]).expect("rename");
        fs::rename(&aside, &pair[1]).expect("rename");
    }
    paths.len() / 2 * 2
}

/// Changes a digit of the hash in the name: the file now claims to be another block.
fn rename_files(paths: &[PathBuf], _: &mut u64) -> usize {
    for path in paths {
        let name = path.file_name().and_then(|n| n.to_str()).expect("name");
        let digit = if name.as_bytes()[20] == b'0' { "1" } else { "0" };
        fs::rename(path, path.with_file_name(format!("{}{digit}{}", &name[..20], &name[21..]))).expect("rename");
    }
    paths.len()
}

fn not_a_block(paths: &[PathBuf], _: &mut u64) -> usize {
    paths.iter().for_each(|path| fs::write(path, b"something else").expect("write"));
    paths.len()
}

fn empty(paths: &[PathBuf], _: &mut u64) -> usize {
    paths.iter().for_each(|path| fs::write(path, b"").expect("write"));
    paths.len()
}

fn remove(paths: &[PathBuf], _: &mut u64) -> usize {
    paths.iter().for_each(|path| fs::remove_file(path).expect("remove"));
    paths.len()
}

#[test]
fn damage_at_rest_ends_in_misses() {
    let base = seed();
    // What is counted: `corrupt` for a copy that is there and wrong, `vanished` for one that is gone; a renamed or removed
    // file may also be noticed when the directory is read at start, and is then nobody's block.
    let damages: [(&str, Damage, bool); 8] = [
        ("bit flipped in the payload", flip_payload, true),
        ("bit flipped in the footer", flip_footer, true),
        ("truncated", truncate, true),
        ("swapped in pairs", swap_pairs, true),
        ("name changed", rename_files, false),
        ("replaced by other bytes", not_a_block, true),
        ("emptied", empty, true),
        ("removed", remove, false),
    ];
    for (what, damage, counted) in damages {
        let root = tempfile::tempdir().expect("temporary directory");
        let filled = Replay::new(root.path()).args(ARGUMENTS).run();
        assert_eq!(filled["wrong_blocks"], 0);
        let sound = Replay::new(root.path()).args(ARGUMENTS).run();
        let sound_hits = sound["hits"]["nvme"].as_u64().expect("hits.nvme");
        assert!(sound_hits > 0, "a second run on sound files hits: {sound:#}");

        let blocks = files(root.path(), "blk");
        assert!(blocks.len() > 100, "the first run stored {} files", blocks.len());
        let mut state = base;
        assert!(damage(&blocks, &mut state) > 100);

        let (report, log) = Replay::new(root.path()).args(ARGUMENTS).run_with_log();
        let context = format!("{what}, TERRACE_SEED={base}: {report:#}\n{log}");
        assert_sound(&report, 60, &context);
        if counted {
            assert!(tier_counter(&report, "corrupt") > 0, "{context}");
            assert!(log.contains("quarantine"), "a log line says what became of the copies; {context}");
        }
    }
}

/// Blocks of another namespace, under the names of ours: a copy that a careless restore would make.
#[test]
fn files_of_another_namespace_are_not_ours() {
    let ours = tempfile::tempdir().expect("temporary directory");
    let theirs = tempfile::tempdir().expect("temporary directory");
    // The same keys with another block shape have other bytes and another namespace.
    let fill = |root: &Path, tokens: &str| {
        Replay::new(root).args(ARGUMENTS).args(["--tokens-per-block", tokens]).run();
    };
    fill(ours.path(), "16");
    fill(theirs.path(), "32");
    let mut replaced = 0;
    let their_files = files(theirs.path(), "blk");
    for (mine, other) in files(ours.path(), "blk").iter().zip(&their_files) {
        fs::copy(other, mine).expect("copy");
        replaced += 1;
    }
    assert!(replaced > 100, "{replaced} files replaced");
    let report = Replay::new(ours.path()).args(ARGUMENTS).args(["--tokens-per-block", "16"]).run();
    assert_sound(&report, 60, "files of another namespace");
    assert!(tier_counter(&report, "corrupt") > 0, "{report:#}");
}
