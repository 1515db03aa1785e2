//! How long requests waited for their first token.

use std::time::Duration;

use serde::Serialize;

/// Steps in a doubling.
const STEPS: f64 = 16.0;
/// From a microsecond to a day and more.
const BUCKETS: usize = 640;

/// Times in buckets that are 4 % wide.
#[derive(Clone, Debug)]
pub struct Waits {
    buckets: Box<[u64]>,
    count: u64,
}

/// Quantiles in milliseconds, 4 % high at most; 0 where nothing was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitTimes {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Waits {
    /// Nothing measured.
    pub fn new() -> Self {
        Self { buckets: vec![0; BUCKETS].into_boxed_slice(), count: 0 }
    }

    /// Counts one.
    pub fn add(&mut self, wait: Duration) {
        let micros = (wait.as_secs_f64() * 1e6).max(1.0);
        let bucket = (micros.log2() * STEPS).ceil() as usize;
        if let Some(count) = self.buckets.get_mut(bucket.min(BUCKETS - 1)) {
            *count += 1;
            self.count += 1;
        }
    }

    /// What was measured.
    pub fn times(&self) -> WaitTimes {
        WaitTimes { p50: self.quantile(0.5), p90: self.quantile(0.9), p99: self.quantile(0.99) }
    }

    fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        found.map_or(0.0, |bucket| (bucket as f64 / STEPS).exp2() / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_bucket() {
        let mut waits = Waits::new();
        assert_eq!(waits.times().p50, 0.0);
        for millis in 1..=1_000 {
            waits.add(Duration::from_millis(millis));
        }
        let WaitTimes { p50, p90, p99 } = waits.times();
        for (found, exact) in [(p50, 500.0), (p90, 900.0), (p99, 990.0)] {
            assert!((exact..exact * 1.045).contains(&found), "{found} for {exact}");
        }
        waits.add(Duration::ZERO);
        waits.add(Duration::MAX);
    }
}
