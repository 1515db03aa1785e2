//! Real request traces, replayed on the block table alone.

use std::collections::HashSet;
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
pub fn hit_percent(trace: &Trace, share_percent: u64, policy: Policy, store_threshold: u32) -> f64 {
    let blocks = ((trace.unique * share_percent) as f64 / 100.0).round() as u32;
    let mut primary = Primary::new(blocks, 32, policy);
    let tracker_entries = trace.unique as u32;
    let mut admission = Admission::new(&AdmissionConfig { store_threshold, tracker_entries });
    let (mut hits, mut evicted) = (0, Vec::new());
    let (mut keys, mut slots, mut absent): (Vec<Key>, Vec<Option<SlotId>>, Vec<usize>) = Default::default();
    for request in &trace.requests {
        keys.clear();
        keys.extend(request.iter().map(|block| key(*block)));
        slots.clear();
        primary.find_batch(&keys, |_, found| {
            slots.push(found.map(|(slot, _)| slot));
            ControlFlow::Continue(())
        });
        let run = slots.iter().take_while(|slot| slot.is_some()).count();
        hits += run as u64;

        let v: u32 = std::env::var("V").map_or(0, |v| v.parse().unwrap());
        let _ = &mut absent;
        if v == 1 || v == 2 {
            // classic: tail to head, each access alone; 2: adapt first
            for at in (0..keys.len()).rev() {
                match primary.find(&keys[at]) {
                    Some(slot) => { primary.touch(&[slot]); primary.touch(&[]); }
                    None => {
                        evicted.clear();
                        if v == 2 { primary.expect(&keys[at]); }
                        assert!(primary.make_room(1, &mut evicted));
                        let slot = primary.insert_writing(&keys[at]).unwrap();
                        primary.publish(slot);
                        primary.touch(&[slot]);
                    }
                }
            }
        } else if v == 3 || v == 4 {
            // 3: held; 4: not held (writing ones are)
            let held: Vec<SlotId> = slots.iter().flatten().copied().collect();
            if v == 3 { assert!(held.iter().all(|slot| primary.acquire(*slot))); }
            absent.clear();
            absent.extend((0..keys.len()).filter(|at| slots[*at].is_none()));
            let ks: Vec<Key> = absent.iter().map(|at| keys[*at]).collect();
            evicted.clear();
            let mut new = Vec::new();
            assert!(primary.insert_all_writing(&ks, &mut new, &mut evicted));
            for s in &new { primary.publish(*s); }
            primary.touch(&new);
            if v == 3 { assert!(held.iter().all(|slot| primary.release(*slot))); }
            let used: Vec<SlotId> = held.iter().rev().copied().collect();
            primary.touch(&used);
            let all: Vec<SlotId> = keys.iter().rev().filter_map(|k| primary.find(k)).collect();
            let _ = all;
        }
    }
    assert_eq!((primary.writing(), primary.readers(), primary.limbo()), (0, 0, 0));
    100.0 * hits as f64 / trace.references as f64
}
