//! Progress on stderr.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::engine::Engine;

/// Time between two looks at the engine.
const PERIOD: Duration = Duration::from_millis(200);
/// Steps between two looks at the clock.
const STEPS: u64 = 16;

/// The bars of a replay.
pub struct Bars {
    requests: Option<u64>,
    replay: ProgressBar,
    looked: Cell<Option<Instant>>,
}

impl Bars {
    /// Bars for a replay of so many requests; `None`: as far as the trace goes.
    pub fn new(requests: Option<u64>) -> Self {
        Self { requests, replay: ProgressBar::hidden(), looked: Cell::new(None) }
    }

    /// A bar for touching the region's pages.
    pub fn prefault(&self) -> ProgressBar {
        let style = ProgressStyle::with_template("prefault {wide_bar} {bytes}/{total_bytes}");
        ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Shows the bar of the replay itself.
    pub fn start(&mut self) {
        let style = ProgressStyle::with_template("replay {wide_bar} {percent:>3}% {elapsed_precise} {msg}");
        self.replay = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    }

    /// Looks at the engine, now and then.
    pub fn watch(&self, engine: &Engine) {
        if !engine.counts.steps.is_multiple_of(STEPS) {
            return;
        }
        let now = Instant::now();
        if self.looked.get().is_some_and(|last| now.duration_since(last) < PERIOD) {
            return;
        }
        self.looked.set(Some(now));
        let counts = &engine.counts;
        let (done, total) = match self.requests {
            Some(requests) => (counts.requests, requests),
            None => (engine.progress().done, engine.progress().total),
        };
        self.replay.set_length(total);
        self.replay.set_position(done);
        let hits = counts.hits_gpu + counts.hits_external;
        let ratio = 100.0 * hits as f64 / (counts.blocks_looked_up.max(1)) as f64;
        self.replay.set_message(format!("{} requests, {ratio:.1}% hits", counts.requests));
    }

    /// Removes what is shown.
    pub fn finish(&self) {
        self.replay.finish_and_clear();
    }
}
