//! The host copy engine.
#![expect(unsafe_code, reason = "addresses of the bench's own arenas are copied between")]

use std::sync::Arc;
use std::time::Instant;

use terrace_kernels::{Arena, CopyEngine, CopyRun, Direction, HostCopyEngine, Order, StreamKind, stream_copy};

use super::outcome::Outcome;
use super::{median, progress};

/// Bytes copied by one measurement.
const BYTES: usize = 256 << 20;
/// Measurements of each kind.
const ROUNDS: usize = 15;
/// Threads of the engine and of its rivals.
const THREADS: usize = 2;

/// A way to copy one range.
type CopyRange = fn(usize, usize, usize);

fn plain(src: usize, dst: usize, len: usize) {
    // SAFETY: the caller gives ranges inside two arenas that do not overlap and that it owns.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len) }
}

fn streaming(src: usize, dst: usize, len: usize) {
    // SAFETY: as for `plain`.
    unsafe { stream_copy(StreamKind::detect(), src as *const u8, dst as *mut u8, len) }
}

/// Copies `BYTES` by `threads` threads, each its part; GB/s.
fn by_threads(copy: CopyRange, threads: usize, from: &Arena, to: &Arena) -> f64 {
    let part = BYTES / threads;
    let (from, to) = (from.address(), to.address());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move || copy(from + thread * part, to + thread * part, part));
        }
        copy(from, to, part);
    });
    BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Copies `BYTES` through the engine in one batch of runs of `run_bytes`; GB/s.
fn by_engine(engine: &mut HostCopyEngine, run_bytes: usize, from: &Arena, to: &Arena) -> anyhow::Result<f64> {
    let runs: Vec<_> = (0..BYTES / run_bytes)
        .map(|run| CopyRun {
            src: from.address() + run * run_bytes,
            dst: to.address() + run * run_bytes,
            len: run_bytes,
        })
        .collect();
    let start = Instant::now();
    // SAFETY: the runs lie inside two arenas that outlive the wait below and that nobody else touches.
    let id = unsafe { engine.submit(Direction::DeviceToHost, &runs, Order::default())? };
    engine.wait(&[id])?;
    let rate = BYTES as f64 / start.elapsed().as_secs_f64() / 1e9;
    engine.poll(&mut Vec::new());
    Ok(rate)
}

pub(super) fn run() -> anyhow::Result<Outcome> {
    let (from, to) = (Arc::new(Arena::new(BYTES)?), Arc::new(Arena::new(BYTES)?));
    let mut engine = HostCopyEngine::new(THREADS, 64)?;
    let rivals: [(&str, CopyRange, usize); 4] = [
        ("memcpy, 1 thread", plain, 1),
        ("memcpy, 2 threads", plain, THREADS),
        ("non-temporal, 1 thread", streaming, 1),
        ("non-temporal, 2 threads", streaming, THREADS),
    ];
    let mut outcome = Outcome::new("copy");
    for run_bytes in [2 << 20, 256 << 10, 16 << 10] {
        progress(format_args!("runs of {} KiB", run_bytes >> 10));
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        let mut rival_rates = vec![Vec::new(); rivals.len()];
        for round in 0..=ROUNDS {
            let mut ceiling = 0.0_f64;
            for ((_, copy, threads), rates) in rivals.iter().zip(&mut rival_rates) {
                let rate = by_threads(*copy, *threads, &from, &to);
                ceiling = ceiling.max(rate);
                rates.push(rate);
            }
            let rate = by_engine(&mut engine, run_bytes, &from, &to)?;
            // The first round warms the memory up.
            if round > 0 {
                rates.push(rate);
                ratios.push(rate / ceiling);
            }
        }
        let mut ceiling = 0.0_f64;
        for ((name, ..), rates) in rivals.iter().zip(&mut rival_rates) {
            let rate = median(&mut rates[1..]);
            progress(format_args!("{name}: {rate:.1} GB/s"));
            ceiling = ceiling.max(rate);
        }
        let name = format!("host engine, {THREADS} threads, runs of {} KiB", run_bytes >> 10);
        outcome.add_with_ratio(name, median(&mut rates), "GB/s", ceiling, median(&mut ratios), ">= 0.95");
    }
    Ok(outcome)
}
