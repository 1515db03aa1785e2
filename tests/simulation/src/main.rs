//! Replays one seed, or runs many; see `USAGE`.

use std::process::ExitCode;

use terrace_simulation::{Off, Run, Scene, run_many, shrink};

const USAGE: &str = "usage: terrace-simulation --seed N [--seeds K] [--steps M] [--threads T] [--trace] [--no-crc] [--no-faults] [--cluster | --connector | --socket] \
                     [--off NAME,NAME..] [--shrink]";

/// How many times longer than the failure a shorter run is tried.
const SHRINK_WITHIN: u32 = 4;

/// The command line.
struct Arguments {
    template: Run,
    seeds: u64,
    threads: u64,
    shrink: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut parsed = Arguments { template: Run::new(0, 300), seeds: 1, threads: 1, shrink: false };
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.parse::<u64>().ok();
        match argument.as_str() {
            "--seed" => parsed.template.seed = number()?,
            "--seeds" => parsed.seeds = number()?,
            "--steps" => parsed.template.steps = u32::try_from(number()?).ok()?,
            "--threads" => parsed.threads = number()?,
            "--off" => parsed.template.off = Off::parse(&arguments.next()?)?,
            "--trace" => parsed.template.print = true,
            "--no-crc" => parsed.template.verify_crc = false,
            "--no-faults" => parsed.template.faults = false,
            "--cluster" => parsed.template.scene = Scene::Cluster,
            "--connector" => parsed.template.scene = Scene::Connector,
            "--socket" => parsed.template.scene = Scene::Socket,
            "--shrink" => parsed.shrink = true,
            _ => return None,
        }
    }
    Some(parsed)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let Arguments { template, seeds, threads, shrink: shorten } = arguments;
    let (counts, failures) = run_many(template, seeds, threads, |failure| println!("{failure}"));
    if shorten && let Some(failure) = failures.first() {
        println!("shrunk: {}", shrink(failure.clone(), SHRINK_WITHIN));
    }
    print!("{counts}");
    println!("{} of {seeds} seeds failed", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
