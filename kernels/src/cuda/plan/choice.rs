//! Which way to copy runs of a length: what was measured at start, or what the configuration says.

use std::fmt::Write as _;

use crate::engine::Direction;

/// The ways of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// An asynchronous copy for each run, by the copy engines of the device.
    Runs,
    /// Many runs in one call, by the copy engines of the device.
    Batch,
    /// A two-dimensional copy for runs at constant distances.
    Rects,
    /// The gather kernel, by multiprocessors.
    Kernel,
}

/// What the configuration asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The fastest of those that there are, for each length, as measured at start.
    #[default]
    Auto,
    /// This one wherever it can be used.
    Only(Path),
}

/// What was measured for runs of one length, in GB/s. `None`: there is no such path here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Bytes of a run.
    pub run_bytes: usize,
    /// [`Path::Runs`].
    pub runs: f64,
    /// [`Path::Batch`].
    pub batch: Option<f64>,
    /// [`Path::Rects`].
    pub rects: Option<f64>,
    /// [`Path::Kernel`].
    pub kernel: Option<f64>,
}

/// The points of both directions, by growing length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Stores.
    pub to_host: Vec<Point>,
    /// Loads.
    pub to_device: Vec<Point>,
}

impl Curves {
    /// The curve of a direction.
    pub fn of(&self, direction: Direction) -> &[Point] {
        match direction {
            Direction::DeviceToHost => &self.to_host,
            Direction::HostToDevice => &self.to_device,
        }
    }
}

/// The kernel takes multiprocessors from the model: it has to be so much faster.
const KERNEL_MARGIN: f64 = 1.1;

/// Where nothing was measured: runs shorter than this go by the kernel. vLLM's crossover on an H100 is about 0.5 MB; a choice
/// made blindly leaves the multiprocessors to the model sooner.
const KERNEL_BELOW_BYTES: usize = 128 * 1024;

/// Picks a path for each run.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    choice: PathChoice,
    has_batch: bool,
    has_kernel: bool,
    curves: Curves,
}

impl Chooser {
    pub fn new(choice: PathChoice, has_batch: bool, has_kernel: bool, curves: Curves) -> Self {
        Self { choice, has_batch, has_kernel, curves }
    }

    /// The same without the kernel: for a batch whose table has no room.
    pub fn without_kernel(&self) -> Self {
        Self { has_kernel: false, ..self.clone() }
    }

    /// [`Path::Batch`] or [`Path::Runs`] for runs of about this length.
    pub fn dma(&self, direction: Direction, run_bytes: usize) -> Path {
        let batch = match self.choice {
            PathChoice::Only(Path::Runs) => false,
            PathChoice::Auto => match self.point(direction, run_bytes) {
                Some(point) => point.batch.is_some_and(|batch| batch >= point.runs),
                None => true,
            },
            PathChoice::Only(_) => true,
        };
        if batch && self.has_batch { Path::Batch } else { Path::Runs }
    }

    /// The path for a run of this length, pinned, on its own.
    pub fn run(&self, direction: Direction, run_bytes: usize) -> Path {
        let kernel = self.has_kernel
            && match self.choice {
                PathChoice::Only(path) => path == Path::Kernel,
                PathChoice::Auto => match self.point(direction, run_bytes) {
                    Some(point) => point.kernel.is_some_and(|kernel| kernel > dma_rate(point) * KERNEL_MARGIN),
                    None => run_bytes < KERNEL_BELOW_BYTES,
                },
            };
        if kernel { Path::Kernel } else { self.dma(direction, run_bytes) }
    }

    /// The path for runs of this length at constant distances.
    pub fn rect(&self, direction: Direction, run_bytes: usize) -> Path {
        let alone = self.run(direction, run_bytes);
        let rect = match self.choice {
            PathChoice::Only(path) => path == Path::Rects,
            PathChoice::Auto => match self.point(direction, run_bytes) {
                Some(point) => point.rects.is_some_and(|rects| {
                    let kernel = if alone == Path::Kernel { point.kernel.unwrap_or(0.0) / KERNEL_MARGIN } else { 0.0 };
                    rects > dma_rate(point) && rects > kernel
                }),
                None => alone == Path::Runs,
            },
        };
        if rect { Path::Rects } else { alone }
    }

    fn point(&self, direction: Direction, run_bytes: usize) -> Option<&Point> {
        let curve = self.curves.of(direction);
        let above = curve.partition_point(|point| point.run_bytes <= run_bytes);
        curve.get(above.saturating_sub(1))
    }

    /// The choice in words, for the log.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (direction, name) in [(Direction::DeviceToHost, "to host"), (Direction::HostToDevice, "to device")] {
            let _ = write!(text, "{}{name}:", if text.is_empty() { "" } else { "; " });
            let mut last = None;
            for shift in 11..=22 {
                let now = (self.run(direction, 1 << shift), self.rect(direction, 1 << shift));
                if last != Some(now) {
                    let from = if last.is_none() { 0 } else { 1 << (shift - 10) };
                    let _ = write!(text, " from {from} KiB {:?}", now.0);
                    if now.1 != now.0 {
                        let _ = write!(text, " ({:?} where distances are constant)", now.1);
                    }
                    last = Some(now);
                }
            }
        }
        text
    }
}

fn dma_rate(point: &Point) -> f64 {
    point.batch.map_or(point.runs, |batch| batch.max(point.runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: Direction = Direction::DeviceToHost;

    fn point(run_bytes: usize, runs: f64, batch: f64, rects: f64, kernel: f64) -> Point {
        Point { run_bytes, runs, batch: Some(batch), rects: Some(rects), kernel: Some(kernel) }
    }

    #[test]
    fn the_fastest_measured_path_wins_and_the_kernel_only_by_its_margin() {
        let curves = Curves {
            to_host: vec![
                point(4096, 2.0, 9.0, 3.0, 30.0),
                point(65_536, 30.0, 40.0, 45.0, 43.0),
                point(1 << 20, 50.0, 49.0, 48.0, 52.0),
            ],
            to_device: Vec::new(),
        };
        let chooser = Chooser::new(PathChoice::Auto, true, true, curves);
        assert_eq!(
            (chooser.run(H, 1), chooser.run(H, 4096), chooser.run(H, 65_535)),
            (Path::Kernel, Path::Kernel, Path::Kernel)
        );
        assert_eq!((chooser.run(H, 65_536), chooser.rect(H, 65_536)), (Path::Batch, Path::Rects));
        assert_eq!((chooser.run(H, 1 << 20), chooser.rect(H, 4 << 20)), (Path::Runs, Path::Runs));
        let without = chooser.without_kernel();
        assert_eq!((without.run(H, 4096), without.rect(H, 4096)), (Path::Batch, Path::Batch));
        assert!(
            chooser
                .describe()
                .contains("to host: from 0 KiB Kernel from 64 KiB Batch (Rects where distances are constant)"),
            "{}",
            chooser.describe()
        );
    }

    #[test]
    fn what_is_not_there_is_never_chosen() {
        for choice in [
            PathChoice::Auto,
            PathChoice::Only(Path::Runs),
            PathChoice::Only(Path::Batch),
            PathChoice::Only(Path::Rects),
            PathChoice::Only(Path::Kernel),
        ] {
            let bare = Chooser::new(choice, false, false, Curves::default());
            let rich = Chooser::new(choice, true, true, Curves::default());
            for run_bytes in [1, 4096, 1 << 17, 1 << 24] {
                assert_eq!(bare.run(H, run_bytes), Path::Runs);
                assert!(matches!(bare.rect(H, run_bytes), Path::Runs | Path::Rects));
                if let PathChoice::Only(path) = choice {
                    assert_eq!(rich.rect(H, run_bytes), path);
                    assert!(path == Path::Rects || rich.run(H, run_bytes) == path);
                }
            }
        }
    }
}
