//! Running a seed.

use std::fmt;

use crate::counts::Counts;
use crate::failure::Failure;
use crate::off::Off;
use crate::play::play;
use crate::rng::Rng;
use crate::settings::Settings;
use crate::trace::SharedTrace;
use crate::world::World;

/// The worlds that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// One process whose manager is called directly, on its disks.
    Disks,
    /// Several nodes on one bucket.
    Cluster,
    /// One process with an engine's memory, a connector and copies, on its disks.
    Connector,
    /// A daemon's pools and several engines that connect to it.
    Socket,
}

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Decides everything.
    pub seed: u64,
    /// Steps of the engine.
    pub steps: u32,
    /// Whether payloads are checked against their CRC32. `false` shows that the simulation finds it out.
    pub verify_crc: bool,
    /// Whether anything goes wrong at all.
    pub faults: bool,
    /// Which world.
    pub scene: Scene,
    /// What is left out of this seed's world.
    pub off: Off,
    /// Writes the trace to stderr.
    pub print: bool,
}

impl Run {
    /// A seed as the tests run it.
    pub const fn new(seed: u64, steps: u32) -> Self {
        Self { seed, steps, verify_crc: true, faults: true, scene: Scene::Disks, off: Off::NOTHING, print: false }
    }
}

/// The arguments that run it.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {} --steps {}", self.seed, self.steps)?;
        for (given, argument) in [
            (!self.verify_crc, " --no-crc"),
            (!self.faults, " --no-faults"),
            (self.scene == Scene::Cluster, " --cluster"),
            (self.scene == Scene::Connector, " --connector"),
            (self.scene == Scene::Socket, " --socket"),
        ] {
            f.write_str(if given { argument } else { "" })?;
        }
        if self.off != Off::NOTHING {
            write!(f, " --off {}", self.off)?;
        }
        f.write_str(" --trace")
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Equal for equal runs.
    pub digest: u64,
    /// What happened.
    pub counts: Counts,
    /// The first thing that was broken, if any.
    pub failure: Option<Failure>,
}

/// Runs one seed to its end or to its first failure.
pub fn run(run: &Run) -> Outcome {
    match run.scene {
        Scene::Disks => {}
        Scene::Cluster => return crate::cluster::run(run),
        Scene::Connector => return crate::connector::run(run),
        Scene::Socket => return crate::socket::run(run),
    }
    let trace = SharedTrace::new(run.print);
    let mut rng = Rng::new(run.seed);
    let mut settings = Settings::draw(&mut rng.fork("settings"), run.faults);
    run.off.apply(&mut settings);
    trace.add(format_args!("{settings:?}"));
    let world = World::new(settings, rng.fork("world"), trace.clone(), run.verify_crc);
    play(run, &trace, world)
}
