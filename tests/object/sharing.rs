//! What one node stored another hits, at few requests.

use std::collections::HashSet;
use std::path::Path;

use terrace_test_s3::Operation;

use crate::bucket::{Bucket, segment_gets};
use crate::node::{Outcome, Setup};
use crate::number;

/// Blocks of the size that this is made for: 16 tokens each, say.
const LARGE: u32 = 256 << 10;
/// Blocks for each request that stores or loads them, at least.
const BLOCKS_PER_REQUEST: u64 = 8;
/// LISTs of the log: fold_interval is 250 ms.
const LISTS_PER_SECOND: f64 = 4.0;
/// LISTs of a node that do not follow the log: of the probe, the first reading, and the collector.
const OTHER_LISTS: f64 = 20.0;

/// Conversations: an odd number, so that two nodes that are dealt one request in turn each get every other turn of each.
const CONVERSATIONS: u64 = 9;
const TURNS: u64 = 4;
/// What a turn adds to the prompt: some hundred tokens, in two segments.
const TURN_BLOCKS: u64 = 30;
/// System prompts that they share.
const SYSTEM_PROMPTS: u64 = 2;
const SYSTEM_BLOCKS: u64 = 64;
/// Between two turns of a conversation: by then the other node knows, also on a busy machine.
const TURN_MS: u64 = 4_000;
/// Between two conversations.
const PAUSE_MS: u64 = 100;

/// Arrivals in milliseconds, and prompts.
fn prompts() -> Vec<(u64, Vec<u64>)> {
    let prompt = |turn: u64, conversation: u64| {
        let system = (0..SYSTEM_BLOCKS).map(move |block| (conversation % SYSTEM_PROMPTS) << 32 | block);
        let own = (0..(turn + 1) * TURN_BLOCKS).map(move |block| (conversation + SYSTEM_PROMPTS) << 32 | block);
        (turn * TURN_MS + conversation * PAUSE_MS, system.chain(own).collect())
    };
    (0..TURNS).flat_map(|turn| (0..CONVERSATIONS).map(move |conversation| prompt(turn, conversation))).collect()
}

fn write_trace(path: &Path) {
    let line = |(at, ids): (u64, Vec<u64>)| {
        let tokens = ids.len() * 16;
        format!("{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 5, \"hash_ids\": {ids:?}}}\n")
    };
    std::fs::write(path, prompts().into_iter().map(line).collect::<String>()).expect("a trace");
}

#[test]
fn two_nodes_hit_what_only_the_other_stored_at_few_requests() {
    let (bucket, place) = (Bucket::start(), tempfile::tempdir().expect("a directory"));
    let trace = place.path().join("trace.jsonl");
    write_trace(&trace);
    // Nothing is evicted from the primary: what is loaded from the bucket, this node never had.
    let all = prompts().into_iter().flat_map(|(_, ids)| ids).collect::<HashSet<u64>>().len() as u32;
    let setup = Setup { block_bytes: LARGE, primary_blocks: all, ..Setup::default() };
    let start = |part| {
        setup.start(&bucket.proxy, &format!("--trace {} --speed 1 --gpu-blocks 512 --part {part}", trace.display()))
    };
    let ended = ["1/2", "2/2"].map(start).map(|node| node.end());
    let counts = bucket.proxy.counts();
    for node in &ended {
        assert_eq!(number(&node.report, "/evicted/primary"), 0, "{:#}", node.report);
        assert!(node.external_hits() > 0, "{:#}", node.report);
    }

    let lists = counts.of(Operation::List).requests;
    let allowed: f64 = ended.iter().map(|node| seconds(node) * LISTS_PER_SECOND + OTHER_LISTS).sum();
    assert!((lists as f64) < allowed, "{lists} LISTs, {allowed} are allowed: {}", counts.to_json());

    let puts: u64 = [Operation::Put, Operation::CreateUpload, Operation::UploadPart, Operation::CompleteUpload]
        .map(|operation| counts.of(operation).requests)
        .iter()
        .sum();
    let segments = counts.under("/segments/");
    let stored_bytes = segments.of(Operation::Put).received_bytes + segments.of(Operation::UploadPart).received_bytes;
    let stored = stored_bytes / u64::from(LARGE);
    let gets = segment_gets(&bucket.proxy).requests;
    let loaded: u64 = ended.iter().map(|node| number(&node.report, "/tiers/0/loaded")).sum();
    let hits = ended.each_ref().map(Outcome::external_hits);
    eprintln!("{hits:?} hits; {lists} LISTs; {puts} PUTs for {stored} blocks; {gets} GETs for {loaded} blocks");
    assert!(puts * BLOCKS_PER_REQUEST <= stored, "{puts} PUTs for {stored} blocks: {}", counts.to_json());
    assert!(gets * BLOCKS_PER_REQUEST <= loaded, "{gets} GETs for {loaded} blocks: {}", counts.to_json());
}

/// Slow enough that what is stored reaches the bucket before the small primary loses it.
const PACED: &str = "--seed 7 --limit 100 --concurrency 4 --speed 8";
/// The same for a node that has only to load.
const QUICK: &str = "--seed 7 --limit 100 --concurrency 4";

#[test]
fn a_later_node_hits_what_the_snapshot_names() {
    let bucket = Bucket::start();
    let setup = Setup { tier: "collector = \"always\"\ncompaction_interval = \"1s\"".to_owned(), ..Setup::default() };
    let first = setup.run(&bucket.proxy, PACED);
    assert!(!bucket.objects("/snapshots/").is_empty(), "no snapshot was made: {}", first.log);
    bucket.proxy.reset();
    let second = setup.run(&bucket.proxy, QUICK);
    let manifests = bucket.proxy.counts().under("/snapshots/").of(Operation::Get).ok;
    assert!(manifests > 0, "the snapshot was not read: {}", bucket.proxy.counts().to_json());
    assert_hits(&first, &second);
}

#[test]
fn a_later_node_hits_what_the_log_names() {
    let bucket = Bucket::start();
    let setup = Setup { tier: "collector = \"never\"".to_owned(), ..Setup::default() };
    let first = setup.run(&bucket.proxy, PACED);
    assert!(bucket.objects("/snapshots/").is_empty(), "nobody was to make one");
    assert_hits(&first, &setup.run(&bucket.proxy, QUICK));
}

fn assert_hits(first: &Outcome, second: &Outcome) {
    let context = || format!("first {:#}, second {:#}", first.report, second.report);
    assert!(second.external_hits() > first.external_hits(), "{}", context());
    assert!(second.misses() * 4 < first.misses(), "{}", context());
    eprintln!("misses {}, then {}", first.misses(), second.misses());
}

fn seconds(node: &Outcome) -> f64 {
    node.report["wall_s"].as_f64().expect("seconds")
}
