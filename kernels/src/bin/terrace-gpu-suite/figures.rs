//! Rates beside the rate of large pinned copies, taken in the same run.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use terrace_kernels::cuda::{Driver, Path, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order};

use super::cases::CHOICES;
use super::rig::{Place, Rig};

const LENGTHS: [usize; 12] = [
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];
/// Runs from here on must come near the ceiling.
const LARGE: usize = 512 << 10;
/// What near is.
const NEAR: f64 = 0.95;
/// Pages at which the chosen path must beat a copy for each.
const SMALL: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// How much is measured.
pub struct Scale {
    /// Memory on either side, a multiple of 8 MiB.
    pub bytes: usize,
    /// Rounds that count; one more warms up.
    pub rounds: usize,
    /// Of the runs whose rate is the ceiling.
    pub ceiling: usize,
    /// m, n and k of a matrix product.
    pub product: [usize; 3],
    /// Products of a round.
    pub products: usize,
}

/// Figures as they are printed. Those of a device that exists only in host memory mean nothing, and say so.
pub struct Figures {
    pub means_nothing: bool,
}

impl Figures {
    pub fn tell(&self, figure: fmt::Arguments<'_>) {
        let word = if self.means_nothing { "NO FIGURE (no GPU)" } else { "FIGURE" };
        println!("{word} {figure}");
    }

    /// Whether a figure is what it must be.
    pub fn target(&self, what: &str, met: bool, found: fmt::Arguments<'_>) {
        if !self.means_nothing {
            println!("TARGET {} {what}: {found}", if met { "met" } else { "MISSED" });
        }
    }
}

/// Which ways bytes go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ways {
    ToHost,
    ToDevice,
    Both,
}

/// GB/s of a path at a length.
struct Rate {
    path: &'static str,
    ways: Ways,
    len: usize,
    rate: f64,
    of_ceiling: f64,
}

pub fn run(driver: &Arc<dyn Driver>, scale: &Scale, figures: &mut Figures) -> Result<(), String> {
    measure(driver, scale, figures).map_err(|error| error.to_string())
}

fn measure(driver: &Arc<dyn Driver>, scale: &Scale, figures: &mut Figures) -> Result<(), CopyError> {
    let mut rates = Vec::new();
    for (path, choice) in CHOICES {
        let mut rig = match Rig::new(driver, choice, scale.bytes, false) {
            Err(CopyError::Unsupported(why)) => {
                println!("NOT RUN figures of path {path}: {why}");
                continue;
            }
            other => other?,
        };
        // Beside each path, so that both are taken under the same clocks.
        let mut plain = Rig::new(driver, PathChoice::Only(Path::Runs), scale.bytes, false)?;
        println!("  {}", rig.engine.describe());
        for ways in [Ways::ToHost, Ways::ToDevice, Ways::Both] {
            let ceiling = best(&mut plain, ways, scale.ceiling, scale.rounds)?;
            let runs = scale.ceiling >> 20;
            figures.tell(format_args!("ceiling beside path {path}, runs of {runs} MiB, {ways:?}: {ceiling:.2} GB/s"));
            for len in LENGTHS.into_iter().filter(|len| len * 8 <= scale.bytes) {
                let rate = best(&mut rig, ways, len, scale.rounds)?;
                let of_ceiling = rate / ceiling;
                figures.tell(format_args!(
                    "path {path}, runs of {} KiB, {ways:?}: {rate:.2} GB/s, {of_ceiling:.3} of the ceiling",
                    len >> 10
                ));
                rates.push(Rate { path, ways, len, rate, of_ceiling });
            }
        }
    }
    targets(&rates, figures);
    Ok(())
}

/// What must be seen true of the path that is chosen by itself.
fn targets(rates: &[Rate], figures: &Figures) {
    for chosen in rates.iter().filter(|rate| rate.path == "auto") {
        let (ways, kib) = (chosen.ways, chosen.len >> 10);
        if chosen.len >= LARGE {
            let what = format!("at least {NEAR} of the ceiling, runs of {kib} KiB, {ways:?}");
            figures.target(&what, chosen.of_ceiling >= NEAR, format_args!("{:.3}", chosen.of_ceiling));
        }
        let rival = rates.iter().find(|rate| rate.path == "runs" && rate.ways == ways && rate.len == chosen.len);
        if let Some(rival) = rival
            && SMALL.contains(&chosen.len)
        {
            let what = format!("faster than a copy for each page, pages of {kib} KiB, {ways:?}");
            let found = chosen.rate / rival.rate.max(1e-9);
            figures.target(&what, found > 1.0, format_args!("{found:.2} times"));
        }
    }
}

/// GB/s of the best round. Pages are apart in both memories, so nothing is merged, and at constant distances, so that rects apply.
/// A round is as much as half of the pinned memory holds, 4,096 runs at most; the first warms up.
fn best(rig: &mut Rig, ways: Ways, len: usize, rounds: usize) -> Result<f64, CopyError> {
    let half = rig.bytes / 2;
    // Pinned are three quarters: the lower half for stores, the next quarter for loads.
    let pages = |area: usize, at: usize| -> Vec<Place> {
        let pitch = if 4 * len >= area { len } else { 2 * len };
        (0..(area / pitch).clamp(1, 4096))
            .map(|page| Place { device: at + page * pitch, host: at + page * pitch, len })
            .collect()
    };
    let (stores, loads) = (pages(half / 2, 0), pages(half / 2, half));
    let mut rate: f64 = 0.0;
    for round in 0..=rounds {
        let began = Instant::now();
        let mut ids = Vec::new();
        let mut bytes = 0;
        // Several batches, so that what submission costs is hidden as it is in use.
        for _ in 0..4 {
            if ways != Ways::ToDevice {
                ids.push(rig.submit(Direction::DeviceToHost, &stores, Order::default())?);
                bytes += stores.len() * len;
            }
            if ways != Ways::ToHost {
                ids.push(rig.submit(Direction::HostToDevice, &loads, Order::default())?);
                bytes += loads.len() * len;
            }
        }
        rig.engine.wait(&ids)?;
        let elapsed = began.elapsed().as_secs_f64();
        let mut done = Vec::new();
        rig.engine.poll(&mut done);
        if let Some(failed) = done.into_iter().find_map(|copy| copy.result.err()) {
            return Err(failed);
        }
        if round > 0 {
            rate = rate.max(bytes as f64 / elapsed.max(1e-9) / 1e9);
        }
    }
    Ok(rate)
}
