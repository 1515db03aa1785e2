//! Rates beside the rate of large pinned copies, taken in the same run.

use std::sync::Arc;
use std::time::Instant;

use terrace_kernels::cuda::{Driver, Path, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order};

use super::rig::{Place, Rig};

const BYTES: usize = 512 << 20;
const ROUNDS: usize = 7;
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
const CHOICES: [(&str, PathChoice); 5] = [
    ("auto", PathChoice::Auto),
    ("runs", PathChoice::Only(Path::Runs)),
    ("batch", PathChoice::Only(Path::Batch)),
    ("rects", PathChoice::Only(Path::Rects)),
    ("kernel", PathChoice::Only(Path::Kernel)),
];

/// Which ways bytes go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ways {
    ToHost,
    ToDevice,
    Both,
}

pub fn run(driver: &Arc<dyn Driver>) -> Result<(), String> {
    measure(driver).map_err(|error| error.to_string())
}

fn measure(driver: &Arc<dyn Driver>) -> Result<(), CopyError> {
    let mut ceilings = Vec::new();
    {
        let mut rig = Rig::new(driver, PathChoice::Only(Path::Runs), BYTES, false)?;
        for ways in [Ways::ToHost, Ways::ToDevice, Ways::Both] {
            let rate = best(&mut rig, ways, 64 << 20)?;
            println!("FIGURE ceiling, runs of 64 MiB, {ways:?}: {rate:.2} GB/s");
            ceilings.push((ways, rate));
        }
    }
    for (name, choice) in CHOICES {
        let mut rig = match Rig::new(driver, choice, BYTES, false) {
            Err(CopyError::Unsupported(why)) => {
                println!("NOT RUN figures of path {name}: {why}");
                continue;
            }
            other => other?,
        };
        println!("  {}", rig.engine.describe());
        for (ways, ceiling) in &ceilings {
            for len in LENGTHS {
                let rate = best(&mut rig, *ways, len)?;
                println!(
                    "FIGURE path {name}, runs of {} KiB, {ways:?}: {rate:.2} GB/s, {:.3} of the ceiling",
                    len >> 10,
                    rate / ceiling
                );
            }
        }
    }
    Ok(())
}

/// GB/s of the best round. Pages are apart in both memories, so nothing is merged, and at constant distances, so that rects apply.
/// A round is as much as half of the pinned memory holds, 4,096 runs at most; the first warms up.
fn best(rig: &mut Rig, ways: Ways, len: usize) -> Result<f64, CopyError> {
    let half = rig.bytes / 2;
    // Pinned are three quarters: the lower half for stores, the next quarter for loads.
    let pages = |area: usize, at: usize| -> Vec<Place> {
        let pitch = if len >= 32 << 20 { len } else { 2 * len };
        (0..(area / pitch).clamp(1, 4096))
            .map(|page| Place { device: at + page * pitch, host: at + page * pitch, len })
            .collect()
    };
    let (stores, loads) = (pages(half / 2, 0), pages(half / 2, half));
    let mut rate: f64 = 0.0;
    for round in 0..=ROUNDS {
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
