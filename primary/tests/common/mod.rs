//! Real request traces, replayed on the block table alone.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::PathBuf;

use terrace_config::{AdmissionConfig, Policy};
use terrace_primary::{Admission, Key, Primary, SlotId};

/// A trace: for each request, in arrival order, the numbers of its blocks.
pub struct Trace {
    pub requests: Vec<Vec<u32>>,
    pub references: u64,
    pub unique: u64,
}

/// The trace `name`, or `None` (said loudly) where the traces are not on this machine.
pub fn trace(name: &str) -> Option<Trace> {
    let shared = std::env::var_os("TERRACE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let path = shared.join("traces").join(format!("{name}.jsonl.zst"));
    let Ok(file) = File::open(&path) else {
        eprintln!(
            "\n*** NOT RUN: {} is not there; set TERRACE_SHARED to the folder that has traces/ ***\n",
            path.display()
        );
        return None;
    };
    let mut decoder = zstd::Decoder::new(file).expect("a zstd decoder");
    decoder.window_log_max(27).expect("a window of 128 MiB");
    let mut requests = Vec::new();
    let mut unique = HashSet::new();
    let mut references = 0;
    for line in BufReader::with_capacity(1 << 20, decoder).lines() {
        let line = line.expect("a line of the trace");
        let blocks = hash_ids(&line);
        references += blocks.len() as u64;
        unique.extend(blocks.iter().copied());
        requests.push(blocks);
    }
    Some(Trace { requests, references, unique: unique.len() as u64 })
}

/// The field `hash_ids` of a line.
fn hash_ids(line: &str) -> Vec<u32> {
    let record: serde_json::Value = serde_json::from_str(line).expect("a JSON object");
    let ids = record["hash_ids"].as_array().expect("hash_ids");
    ids.iter().map(|id| u32::try_from(id.as_u64().expect("a number")).expect("ids below 2^32")).collect()
}

/// A key of 36 bytes for a block's number.
pub fn key(block: u32) -> Key {
    let mut hash = [0; 32];
    hash[28..].copy_from_slice(&block.to_be_bytes());
    Key::new(&hash, 0).expect("a hash of 32 bytes")
}

/// Hits in percent of block references, as the traces' page counts them: requests one at a time; the leading run of resident blocks
/// is the hit; then every block is used, present ones touched and absent ones stored, and the head ends as the most recent.
///
/// The calls are those that the manager makes for a load, a store and the end of a request.
pub fn hit_percent(trace: &Trace, share_percent: u64, policy: Policy, store_threshold: u32) -> f64 {
    let blocks = ((trace.unique * share_percent) as f64 / 100.0).round() as u32;
    let mut primary = Primary::new(blocks, 32, policy);
    let tracker_entries = trace.unique as u32;
    let mut admission = Admission::new(&AdmissionConfig { store_threshold, tracker_entries });
    let (mut hits, mut evicted, mut displaced) = (0, Vec::new(), Vec::new());
    let (mut keys, mut slots): (Vec<Key>, Vec<Option<SlotId>>) = Default::default();
    for request in &trace.requests {
        keys.clear();
        keys.extend(request.iter().map(|block| key(*block)));
        slots.clear();
        primary.find_batch(&keys, |_, found| {
            slots.push(found.map(|(slot, _)| slot));
            ControlFlow::Continue(())
        });
        let loaded: Vec<SlotId> = slots.iter().map_while(|slot| *slot).collect();
        hits += loaded.len() as u64;
        assert!(loaded.iter().all(|slot| primary.acquire(*slot)));
        primary.touch_early(loaded.iter().rev().copied());
        let mut stored: HashMap<SlotId, usize> = HashMap::new();
        for (at, key) in keys.iter().enumerate().rev() {
            if slots[at].is_none() && admission.offered(key) {
                displaced.clear();
                slots[at] = primary.insert_in_run(key, &mut evicted, &mut displaced);
                for gone in displaced.iter().filter_map(|slot| stored.remove(slot)) {
                    slots[gone] = None;
                }
                stored.extend(slots[at].map(|slot| (slot, at)));
            }
        }
        evicted.clear();
        let run: Vec<SlotId> = stored.into_keys().collect();
        primary.end_run(&run);
        assert!(run.iter().all(|slot| primary.publish(*slot)));
        assert!(loaded.iter().all(|slot| primary.release(*slot)));
        let used: Vec<SlotId> = keys.iter().rev().filter_map(|key| primary.find(key)).collect();
        primary.touch(&used);
    }
    assert_eq!((primary.writing(), primary.readers(), primary.limbo(), primary.stats().misuse), (0, 0, 0, 0));
    100.0 * hits as f64 / trace.references as f64
}
