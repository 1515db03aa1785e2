//! Replays one seed, or runs many: `terrace-simulation --seed N [--seeds K] [--steps M] [--trace] [--no-crc] [--no-faults]`.

use std::process::ExitCode;

use terrace_simulation::{Counts, Run, run};

fn main() -> ExitCode {
    let mut template = Run::new(0, 300);
    let mut seeds = 1;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        let known = match argument.as_str() {
            "--seed" => number().map(|seed| template.seed = seed).is_some(),
            "--seeds" => number().map(|count| seeds = count).is_some(),
            "--steps" => number().map(|steps| template.steps = steps as u32).is_some(),
            "--trace" => {
                template.print = true;
                true
            }
            "--no-crc" => {
                template.verify_crc = false;
                true
            }
            "--no-faults" => {
                template.faults = false;
                true
            }
            _ => false,
        };
        if !known {
            eprintln!("usage: terrace-simulation --seed N [--seeds K] [--steps M] [--trace] [--no-crc] [--no-faults]");
            return ExitCode::from(2);
        }
    }
    let mut counts = Counts::default();
    let mut failures = 0;
    for seed in template.seed..template.seed.saturating_add(seeds) {
        let outcome = run(&Run { seed, ..template });
        counts.add(&outcome.counts);
        if let Some(failure) = outcome.failure {
            println!("{failure}");
            failures += 1;
        }
    }
    print!("{counts}");
    println!("{failures} of {seeds} seeds failed");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
