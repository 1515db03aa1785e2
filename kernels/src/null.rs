//! An engine that moves nothing: for studies of policies, where only counts matter.

use crate::engine::{CopyDone, CopyEngine, CopyError, CopyId, CopyRun, CopyStats, Direction, Order};

/// Counts, and reports every copy done at the next poll. Reads no address.
#[derive(Debug, Default)]
pub struct NullCopyEngine {
    next: u64,
    done: Vec<CopyDone>,
    stats: CopyStats,
}

impl NullCopyEngine {
    /// An engine without copies.
    pub fn new() -> Self {
        Self::default()
    }
}

impl CopyEngine for NullCopyEngine {
    #[expect(unsafe_code, reason = "the trait's; nothing is read here")]
    unsafe fn submit(&mut self, direction: Direction, runs: &[CopyRun], _order: Order) -> Result<CopyId, CopyError> {
        let bytes = runs.iter().map(|run| run.len as u64).sum();
        let id = CopyId(self.next);
        self.next += 1;
        self.stats.count(direction, runs.len(), bytes);
        self.done.push(CopyDone { id, result: Ok(()), bytes });
        Ok(id)
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        out.append(&mut self.done);
    }

    fn wait(&mut self, _ids: &[CopyId]) -> Result<(), CopyError> {
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn describe(&self) -> String {
        "null (no bytes move)".to_owned()
    }

    fn moves_bytes(&self) -> bool {
        false
    }

    fn stats(&self) -> CopyStats {
        self.stats
    }
}
