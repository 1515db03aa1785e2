//! Running many seeds on several threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::counts::Counts;
use crate::failure::Failure;
use crate::run::{Run, run};

/// Runs `count` seeds from `template.seed` on, on `threads` threads; tells `failed` each failure as it comes. Gives what happened, and
/// the failures in order of seeds: the same whatever the number of threads.
pub fn run_many(template: Run, count: u64, threads: u64, failed: impl Fn(&Failure) + Sync) -> (Counts, Vec<Failure>) {
    let sum = Mutex::new((Counts::default(), Vec::new()));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let outcome = run(&Run { seed: template.seed.wrapping_add(at), ..template });
                    outcome.failure.iter().for_each(&failed);
                    let (counts, failures) = &mut *sum.lock().unwrap_or_else(PoisonError::into_inner);
                    counts.add(&outcome.counts);
                    failures.extend(outcome.failure);
                }
            });
        }
    });
    let (counts, mut failures) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.run.seed);
    (counts, failures)
}
