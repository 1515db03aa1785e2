//! Numbers for clients and for the handle: names as in `docs/metrics.md`.

use super::counts::PoolCounts;
use super::pool::Pool;
use crate::metrics::flat_pool;
use crate::protocol::StatsReply;

/// A pool's numbers.
#[derive(Clone, Debug)]
pub(super) struct PoolStats {
    pub digest: [u8; 32],
    pub values: Vec<(String, f64)>,
}

impl Pool {
    pub fn stats(&self) -> PoolStats {
        PoolStats { digest: self.digest, values: self.stats_reply().values }
    }

    /// Counters and gauges now.
    pub fn stats_reply(&self) -> StatsReply {
        StatsReply { values: flat_pool(&self.manager, &self.region, &self.counts_now()) }
    }

    /// Tells the recorder of metrics, if there is one.
    pub fn publish(&mut self) {
        let counts = self.counts_now();
        self.published.publish(&self.manager, &self.region, &counts);
    }

    fn counts_now(&self) -> PoolCounts {
        PoolCounts {
            leases: self.sessions.values().map(|session| session.leases.len() as u64).sum(),
            copiers: self.copiers.len() as u64,
            jobs: self.engines.values().map(|engine| engine.jobs.len() as u64).sum(),
            ..self.counts.clone()
        }
    }
}
