//! What a replay has counted, second by second, into a file: how it fares while something happens to its tiers.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::engine::Engine;
use super::report::Report;
use crate::failure::BadInput;

/// Time between two lines.
const PERIOD: Duration = Duration::from_millis(250);

/// Where the lines go; nowhere if none were asked for.
pub struct Samples {
    file: Option<BufWriter<File>>,
    gpu_block_bytes: u64,
    began: Instant,
    wrote: Instant,
}

#[derive(Serialize)]
struct Sample {
    /// Seconds since 1970, to be compared with what else happened.
    unix_s: f64,
    #[serde(flatten)]
    report: Report,
}

impl Samples {
    /// Lines into a new file at `path`. Fails where that cannot be made.
    pub fn new(path: Option<&Path>, gpu_block_bytes: u64) -> anyhow::Result<Self> {
        let create = |path: &Path| {
            File::create(path).map_err(|error| BadInput::new(format!("--samples {}: {error}", path.display())))
        };
        let (file, now) = (path.map(create).transpose()?.map(BufWriter::new), Instant::now());
        Ok(Self { file, gpu_block_bytes, began: now, wrote: now })
    }

    /// Writes a line if it is time. What cannot be written ends the lines and says so.
    pub fn watch(&mut self, engine: &Engine) {
        let Some(file) = &mut self.file else { return };
        let now = Instant::now();
        if now.duration_since(self.wrote) < PERIOD {
            return;
        }
        self.wrote = now;
        let sample = Sample {
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            report: Report::new(engine, self.gpu_block_bytes, now.duration_since(self.began)),
        };
        let line = serde_json::to_string(&sample).map_err(std::io::Error::from);
        if let Err(error) = line.and_then(|line| writeln!(file, "{line}")).and_then(|()| file.flush()) {
            tracing::warn!(%error, "--samples cannot be written; there will be no more");
            self.file = None;
        }
    }
}
