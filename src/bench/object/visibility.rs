//! How soon a block that one node stores is found on another, while the first stores steadily.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use terrace_primary::{Key, SlotId};
use terrace_tiers::{SecondaryTier, TierEvent, TierLookup};

use super::rig::{Direction, Rig, region};
use super::{Place, keys};
use crate::bench::outcome::Outcome;
use crate::bench::progress;

const BLOCK_BYTES: u32 = 64 << 10;
/// Blocks of one store.
const JOB: usize = 16;
/// Stores that may be under way.
const JOBS: usize = 128;
/// Between two stores: 256 blocks a second.
const EVERY: Duration = Duration::from_micros(62_500);
/// Between two looks at the other node.
const LOOK: Duration = Duration::from_millis(5);
const STORES: u64 = 320;
/// When a block that is not seen is taken for lost.
const LOST: Duration = Duration::from_secs(30);
/// What the design promises, in milliseconds.
const LIMIT_MS: f64 = 2_000.0;

/// A store that the other node has not seen whole.
struct Open {
    since: Instant,
    keys: Vec<Key>,
}

/// The time that this share stays below.
fn share(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(at).copied().unwrap_or(0.0)
}

pub(super) fn measure(outcome: &mut Outcome, place: &Place, settings: &[String]) -> anyhow::Result<()> {
    progress(format_args!("a block on another node: {STORES} stores of {JOB} blocks of {} KiB", BLOCK_BYTES >> 10));
    let region = region((JOB * JOBS) as u32, BLOCK_BYTES)?;
    let mut writer = Rig::open(place, settings, BLOCK_BYTES, region.clone())?;
    let mut reader = Rig::open(place, settings, BLOCK_BYTES, region)?;
    let slots: Vec<_> = (0..(JOB * JOBS) as u32).map(SlotId).collect();
    let mut free: VecDeque<_> = slots.chunks(JOB).collect();
    let mut running = HashMap::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    let (mut stored, mut seen) = (Vec::new(), Vec::new());
    let (mut events, mut answers) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut submitted = 0;
    while submitted < STORES || !open.is_empty() || !running.is_empty() {
        let due = submitted < STORES && start.elapsed() >= EVERY * submitted as u32;
        if due && let Some(slots) = free.pop_front() {
            let keys = keys(u64::MAX - submitted, JOB as u64)?;
            let since = Instant::now();
            let id = writer.submit(Direction::Store, &keys, slots.iter().copied());
            let id = id.map_err(|why| anyhow::anyhow!("a store was refused: {why:?}"))?;
            running.insert(id, (slots, since, JOB));
            open.push_back(Open { since, keys });
            submitted += 1;
        }
        writer.tier().poll(&mut events);
        for event in events.drain(..) {
            let TierEvent::StoreDone { job, outcome, .. } = event else { continue };
            outcome.map_err(|fault| anyhow::anyhow!("a block was not stored: {fault:?}"))?;
            let Some((_, since, left)) = running.get_mut(&job) else { continue };
            stored.push(since.elapsed().as_secs_f64() * 1e3);
            *left -= 1;
            if *left == 0
                && let Some((slots, ..)) = running.remove(&job)
            {
                free.push_back(slots);
            }
        }
        reader.tier().poll(&mut events);
        events.clear();
        for Open { since, keys } in &mut open {
            reader.tier().lookup(keys, &mut answers);
            let now = since.elapsed();
            let mut found = answers.iter().map(|answer| *answer == TierLookup::Found);
            keys.retain(|_| {
                let found = found.next().unwrap_or(false);
                if found {
                    seen.push(now.as_secs_f64() * 1e3);
                }
                !found
            });
            anyhow::ensure!(keys.is_empty() || now < LOST, "a block was not seen on the other node within {LOST:?}");
        }
        open.retain(|open| !open.keys.is_empty());
        std::thread::sleep(LOOK);
    }
    anyhow::ensure!(start.elapsed() < EVERY * STORES as u32 + LOST, "the stores were not steady: nothing was measured");
    writer.close();
    reader.close();
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        outcome.add(format!("stored and in the log, {name}"), share(&mut stored, part), "ms", 0.0, "-");
        outcome.add(format!("found on another node, {name}"), share(&mut seen, part), "ms", LIMIT_MS, "<= 1");
    }
    Ok(())
}
