//! `terrace replay` from the outside: what it prints, what it refuses, and that every loaded byte is right.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Replay, assert_sound, files};
use serde_json::Value;

/// Small and busy: everything is evicted from everywhere.
const SMALL: &str = "--block-bytes 16384 --primary-blocks 600 --nvme-blocks 4000 --seed 7";

/// A replay with these arguments whose temporary files lie in `place`.
fn terrace(place: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.arg("replay").args(arguments.split_whitespace());
    command.env("XDG_CACHE_HOME", place).env("TMPDIR", place).stdin(Stdio::null());
    command
}

fn run(arguments: &str) -> Output {
    let place = tempfile::tempdir().expect("temporary directory");
    terrace(place.path(), arguments).output().expect("terrace starts")
}

/// The report of a replay that must succeed.
fn report(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object on stdout")
}

fn number(report: &Value, pointer: &str) -> u64 {
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {pointer} in {report:#}"))
}

/// Writes a trace of these lines.
fn trace_of(place: &Path, lines: &[&str]) -> PathBuf {
    let path = place.join("trace.jsonl");
    std::fs::write(&path, lines.join("\n")).expect("trace");
    path
}

/// A line of a trace: blocks `from..to`, 64 tokens each.
fn line(timestamp_ms: u32, blocks: std::ops::Range<u32>) -> String {
    let ids: Vec<_> = blocks.map(|id| id.to_string()).collect();
    format!(
        r#"{{"timestamp": {timestamp_ms}, "input_length": {}, "output_length": 5, "hash_ids": [{}]}}"#,
        ids.len() * 64,
        ids.join(",")
    )
}

#[test]
fn the_report_has_its_fields_and_they_agree() {
    let report = report(&format!("{SMALL} --limit 200"));
    let fields = "/requests /blocks_looked_up /hits/gpu /hits/primary /hits/nvme /misses /bytes/stored /bytes/loaded \
                  /bytes/cascaded /bytes/promoted /wrong_blocks /retries /dropped_cascades /evicted/primary /evicted/nvme \
                  /steps";
    for field in fields.split_whitespace() {
        number(&report, field);
    }
    let floats = ["/block_hit_ratio", "/wall_s", "/served_s", "/first_token_ms/p99", "/lookup_ns_per_key"];
    for field in floats {
        assert!(report.pointer(field).is_some_and(Value::is_number), "{field} in {report:#}");
    }
    let hits: u64 = ["/hits/gpu", "/hits/primary", "/hits/nvme"].iter().map(|tier| number(&report, tier)).sum();
    let looked_up = number(&report, "/blocks_looked_up");
    assert_eq!(hits + number(&report, "/misses"), looked_up, "{report:#}");
    let ratio = report["block_hit_ratio"].as_f64().expect("a ratio");
    assert!((ratio - hits as f64 / looked_up as f64).abs() < 1e-6, "{report:#}");
    assert_sound(&report, 200, "the defaults");
}

#[test]
fn right_bytes_with_every_policy_chunk_and_group() {
    for policy in ["lru", "arc"] {
        for (blocks_per_chunk, block_bytes) in [(1, 8_192), (2, 16_384), (8, 65_536)] {
            for groups in [1, 2] {
                let context = format!("{policy}, {blocks_per_chunk} blocks a chunk, {groups} groups");
                let report = report(&format!(
                    "--policy {policy} --blocks-per-chunk {blocks_per_chunk} --block-bytes {block_bytes} --groups {groups} \
                     --primary-blocks 900 --nvme-blocks 6000 --gpu-blocks 800 --concurrency 6 --limit 150 --seed 2 \
                     --window-tokens 500"
                ));
                assert_sound(&report, 150, &context);
                assert!(number(&report, "/hits/primary") > 0, "{context}: {report:#}");
                assert!(number(&report, "/bytes/loaded") > 0, "{context}: {report:#}");
            }
        }
    }
}

#[test]
fn a_tiny_gpu_pool_forces_preemption() {
    let mut preemptions = 0;
    for (policy, blocks_per_chunk, groups) in [("lru", 1, 1), ("arc", 2, 1), ("lru", 8, 1), ("lru", 1, 2)] {
        for cache in ["on", "off"] {
            let context = format!("{policy}, {blocks_per_chunk} blocks a chunk, {groups} groups, GPU cache {cache}");
            // Hardly more than the largest prompt needs, and blocks large enough for copies to overlap steps.
            let report = report(&format!(
                "--block-bytes 131072 --primary-blocks 600 --nvme-blocks 2000 --policy {policy} --gpu-prefix-cache {cache} \
                 --blocks-per-chunk {blocks_per_chunk} --groups {groups} --gpu-blocks {} --concurrency 8 \
                 --step-tokens 2048 --decode-steps 4 --limit 100 --seed 3",
                220 * groups
            ));
            assert_sound(&report, 100, &context);
            assert_eq!(number(&report, "/truncated_blocks"), 0, "{context}: {report:#}");
            preemptions += number(&report, "/preemptions");
        }
    }
    // How many there are in one replay depends on how fast loads land.
    assert!(preemptions > 0);
}

#[test]
fn requests_larger_than_the_tiers_are_served_as_far_as_they_fit() {
    let place = tempfile::tempdir().expect("temporary directory");
    let lines = [line(0, 0..500), line(1, 0..500), line(2, 0..100), line(3, 1_000..1_500), line(4, 0..50)];
    let path = trace_of(place.path(), &lines.each_ref().map(String::as_str));
    for gpu_blocks in [2_000, 120] {
        let report = report(&format!(
            "--trace {} --block-bytes 4096 --primary-blocks 200 --nvme-blocks 300 --gpu-blocks {gpu_blocks} \
             --gpu-prefix-cache off --concurrency 1 --promotion-share 1.0",
            path.display()
        ));
        assert_sound(&report, 5, &format!("{gpu_blocks} GPU blocks"));
        assert_eq!(number(&report, "/blocks_looked_up"), 1_650);
        assert!(number(&report, "/hits/primary") + number(&report, "/hits/nvme") > 0, "{report:#}");
    }
}

#[test]
fn counts_do_not_depend_on_bytes_or_on_the_run() {
    let arguments = format!("{SMALL} --limit 120 --concurrency 1 --gpu-prefix-cache off");
    let counted = ["/blocks_looked_up", "/hits/gpu", "/hits/primary", "/hits/nvme", "/misses", "/dropped_cascades"];
    let numbers = |report: &Value| counted.map(|field| number(report, field));
    let with_bytes = report(&arguments);
    assert_eq!(numbers(&with_bytes), numbers(&report(&arguments)), "{with_bytes:#}");
    let without = report(&format!("{arguments} --no-bytes"));
    assert_eq!(numbers(&with_bytes), numbers(&without), "with bytes {with_bytes:#}, without {without:#}");
    let other = report(&format!("{} --no-bytes", arguments.replace("--seed 7", "--seed 8")));
    assert_ne!(numbers(&with_bytes), numbers(&other), "another seed is other traffic");
}

#[test]
fn a_second_replay_finds_what_the_first_left() {
    let place = tempfile::tempdir().expect("temporary directory");
    let arguments = format!("{SMALL} --limit 60 --gpu-prefix-cache off");
    let again = || Replay::new(place.path()).args(arguments.split_whitespace()).run();
    let (first, second) = (again(), again());
    assert_sound(&first, 60, "first");
    assert_sound(&second, 60, "second");
    assert!(number(&second, "/hits/nvme") > number(&first, "/hits/nvme"), "first {first:#}, second {second:#}");
    assert!(number(&second, "/misses") < number(&first, "/misses"), "first {first:#}, second {second:#}");
}

#[test]
fn a_store_threshold_keeps_single_uses_out() {
    let stored = |threshold: u32| {
        let report = report(&format!("{SMALL} --limit 100 --no-bytes --store-threshold {threshold}"));
        number(&report, "/bytes/stored")
    };
    assert!(stored(2) < stored(1));
}

#[test]
fn arrivals_keep_the_pace_that_was_asked_for() {
    let place = tempfile::tempdir().expect("temporary directory");
    let path = trace_of(place.path(), &[&line(0, 0..4), &line(600, 0..4)]);
    let report = report(&format!("--trace {} --no-bytes --speed 2", path.display()));
    assert!(report["wall_s"].as_f64().is_some_and(|wall_s| wall_s >= 0.3), "{report:#}");
}

#[test]
fn traces_with_odd_but_good_lines() {
    let place = tempfile::tempdir().expect("temporary directory");
    let big = u64::MAX.to_string();
    let odd =
        format!(r#"{{"hash_ids": [{big}, 0], "x": null, "timestamp": 7.5, "input_length": 65, "output_length": 0}}"#);
    let empty = r#"{"timestamp": 8, "input_length": 3, "output_length": 1, "hash_ids": [], "session": 4}"#;
    let path = trace_of(place.path(), &[&line(0, 0..4), "", &odd, empty, &odd]);
    let report = report(&format!("--trace {} --primary-blocks 64 --block-bytes 5000 --concurrency 1", path.display()));
    assert_sound(&report, 4, "odd lines");
    assert_eq!(number(&report, "/blocks_looked_up"), 8);
    assert_eq!(number(&report, "/hits/gpu") + number(&report, "/hits/primary"), 2, "{report:#}");
}

#[test]
fn a_bad_trace_names_file_line_and_reason() {
    let place = tempfile::tempdir().expect("temporary directory");
    let path = trace_of(place.path(), &[&line(0, 0..4), "{\"timestamp\": 1}"]);
    let output = run(&format!("--trace {} --no-bytes --json", path.display()));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("trace.jsonl:2: ") && log.contains("missing field"), "{log}");

    let output = run("--trace /no/such/trace.jsonl");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("/no/such/trace.jsonl"), "{log}");
}

#[test]
fn bad_options_end_with_status_2_and_a_reason() {
    for (arguments, reason) in [
        ("--no-such-option", "--no-such-option"),
        ("--policy random", "random"),
        ("--concurrency 0", "concurrency"),
        ("--speed=-1", "speed"),
        ("--speed nan", "speed"),
        ("--gpu-blocks 0", "gpu-blocks"),
        ("--primary-blocks 0", "primary.blocks"),
        ("--primary-blocks 5 --primary-bytes 5", "--primary-bytes"),
        ("--promotion-share 1.5", "promotion_share"),
        ("--block-bytes 0", "block_bytes"),
        ("--groups 3", "groups"),
        ("--blocks-per-chunk 0", "blocks_per_chunk"),
        ("--store-threshold 0", "store_threshold"),
        ("--gpu-prefix-cache maybe", "maybe"),
        ("--copy gpu", "gpu"),
        ("--copy host --no-bytes", "--no-bytes"),
        ("--copy cuda --connect /no/such.sock", "--connect"),
        ("--config /no/such/terrace.toml", "/no/such/terrace.toml"),
    ] {
        let output = run(arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {log}");
        assert!(log.contains(reason), "{arguments:?} does not name {reason}: {log}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// All of the CUDA engine but the driver's own functions, under a whole replay.
#[test]
fn right_bytes_through_a_device_that_exists_only_in_host_memory() {
    for more in ["--groups 1", "--groups 2 --blocks-per-chunk 2"] {
        let report = report(&format!("{SMALL} --limit 150 --copy scripted {more}"));
        assert_sound(&report, 150, more);
        assert!(number(&report, "/bytes/stored") > 0 && number(&report, "/bytes/loaded") > 0, "{report:#}");
    }
}

#[test]
fn asking_for_a_gpu_where_there_is_none_names_the_library() {
    if terrace_kernels::cuda::Cuda::load().is_ok() {
        println!("NOT RUN: a CUDA driver is here");
        return;
    }
    let place = tempfile::tempdir().expect("temporary directory");
    let config = place.path().join("terrace.toml");
    std::fs::write(&config, "[primary]\nblocks = 600\n[copy]\nengine = \"cuda\"\n").expect("a configuration");
    for arguments in ["--copy cuda".to_owned(), format!("--config {}", config.display())] {
        let output = run(&arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{log}");
        assert!(log.contains("copy.engine = \"cuda\": libcuda.so.1") && log.contains("write \"host\""), "{log}");
    }
    // The option wins over the file.
    let report = report(&format!("{SMALL} --limit 20 --copy host --config {}", config.display()));
    assert_sound(&report, 20, "--copy host");
}

#[test]
fn a_configuration_file_is_used_and_options_win() {
    let place = tempfile::tempdir().expect("temporary directory");
    let config = place.path().join("terrace.toml");
    std::fs::write(&config, "[primary]\nblocks = 300\npolicy = \"arc\"\n[geometry]\nblock_bytes = 8192\n")
        .expect("config");
    // One at a time: with all slots being written nothing can be evicted.
    let arguments = format!("--config {} --limit 40 --concurrency 1", config.display());
    let report_of_file = report(&arguments);
    assert_sound(&report_of_file, 40, "the file");
    assert_eq!(number(&report_of_file, "/hits/nvme"), 0, "the file has no NVMe tier: {report_of_file:#}");
    assert!(number(&report_of_file, "/evicted/primary") > 0, "{report_of_file:#}");
    let large = report(&format!("{arguments} --primary-blocks 60000"));
    assert_eq!(number(&large, "/evicted/primary"), 0, "{large:#}");

    std::fs::write(place.path().join("bad.toml"), "[primary]\nblocks = 0\nnonsense = 1\n").expect("config");
    let output = run(&format!("--config {}", place.path().join("bad.toml").display()));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(
        log.contains("bad.toml") && log.contains("nonsense") && log.contains("blocks"),
        "all faults at once: {log}"
    );
}

#[test]
fn people_get_a_table_and_nothing_is_left_behind() {
    let place = tempfile::tempdir().expect("temporary directory");
    let output = terrace(place.path(), &format!("{SMALL} --limit 40")).output().expect("terrace starts");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for word in ["requests", "hits", "wrong"] {
        assert!(table.to_lowercase().contains(word), "{word} in {table}");
    }
    assert!(files(place.path(), "blk").is_empty(), "the temporary directory of the NVMe tier is removed");
}

#[test]
fn a_signal_ends_it_with_the_report_so_far() {
    for signal in ["-TERM", "-INT"] {
        let place = tempfile::tempdir().expect("temporary directory");
        let arguments = format!("{SMALL} --limit 100000000 --json");
        let child = terrace(place.path(), &arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("terrace starts");
        std::thread::sleep(Duration::from_millis(700));
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
        let output = child.wait_with_output().expect("terrace ends");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{signal}: {}: {log}", output.status);
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_sound(&report, number(&report, "/requests"), signal);
        assert!(files(place.path(), "blk").is_empty(), "the temporary directory is removed");
    }
}
