//! What must be seen true on a GPU. `tests/gpu/run` builds it, or takes it where it was built before, and runs it; `tests/gpu/README.md` says what it
//! prints.
//!
//! `--cases` leaves the figures out. `--scripted` runs everything on a device that exists only in host memory, as far as that goes: so the suite
//! itself is tested. `--peer=` is for the second process that it starts.

mod cases;
mod figures;
mod flush;
mod ipc;
mod matmul;
mod memory;
mod peer;
mod rig;
mod slowdown;

use std::process::ExitCode;
use std::sync::Arc;

use figures::{Figures, Scale};
use ipc::Setup;
use terrace_kernels::cuda::scripted::{Script, Scripted};
use terrace_kernels::cuda::{Cuda, DeviceId, Driver};

/// The report as it is printed.
#[derive(Default)]
struct Report {
    passed: u32,
    failed: u32,
    not_run: u32,
}

impl Report {
    /// Runs a case and prints how it ended.
    fn case(&mut self, name: &str, run: impl FnOnce() -> Result<(), String>) {
        match run() {
            Ok(()) => {
                self.passed += 1;
                println!("PASS {name}");
            }
            Err(why) => {
                self.failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
    }

    fn not_run(&mut self, name: &str, why: &str) {
        self.not_run += 1;
        println!("NOT RUN {name}: {why}");
    }
}

const NO_GPU: u8 = 77;
const USAGE: &str = "usage: terrace-gpu-suite [--device=NUMBER|GPU-UUID] [--cases] [--scripted]";

/// What the command line says.
#[derive(Default)]
struct Options {
    device: Option<DeviceId>,
    only_cases: bool,
    scripted: bool,
    peer: Option<String>,
    /// What a second process has to be told.
    of_device: Vec<String>,
}

impl Options {
    fn parse() -> Option<Self> {
        let mut options = Self::default();
        for argument in std::env::args().skip(1) {
            if let Some(device) = argument.strip_prefix("--device=") {
                options.device = Some(device.parse().ok()?);
                options.of_device.push(argument);
            } else if argument == "--scripted" {
                options.scripted = true;
                options.of_device.push(argument);
            } else if argument == "--cases" {
                options.only_cases = true;
            } else {
                let role = argument.strip_prefix("--peer=").filter(|role| ["worker", "daemon"].contains(role))?;
                options.peer = Some(role.to_owned());
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::parse() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let driver: Arc<dyn Driver> = if options.scripted {
        Scripted::new(Script { seed: 1, has_batch: true, has_kernel: true, unified: true })
    } else {
        let device = options.device.unwrap_or(DeviceId::Ordinal(0));
        match Cuda::load().and_then(|cuda| cuda.device(device)) {
            Ok(gpu) => gpu,
            Err(error) => {
                println!("NOT RUN: no case and no figure: {error}");
                return ExitCode::from(NO_GPU);
            }
        }
    };
    // Enough for runs of several MiB, and a few minutes, on a GPU; the script copies with one thread.
    let (bytes, alignments) = if options.scripted { (4 << 20, 1) } else { (20 << 20, 4) };
    if let Some(role) = &options.peer {
        return peer::run(role, &driver, bytes, options.scripted);
    }
    let facts = driver.facts();
    println!(
        "DEVICE {} {} at {}, sm_{}{}, {} multiprocessors, {} copy engines, driver API {}, batched copies: {}",
        facts.name,
        facts.uuid_text(),
        facts.bus_id,
        facts.capability.0,
        facts.capability.1,
        facts.multiprocessors,
        facts.copy_engines,
        facts.driver_version,
        if facts.has_batch { "yes" } else { "no" }
    );
    let mut report = Report::default();
    cases::run(&driver, bytes, alignments, &mut report);
    flush::run(&driver, bytes, &cases::CHOICES, &mut report);
    let in_flight = if options.scripted { 8 } else { 200 };
    let setup = Setup { driver: &driver, arguments: &options.of_device, bytes, in_flight, waits: options.scripted };
    ipc::run(&setup, &mut report);
    memory::run(&driver, bytes, &mut report);
    the_product_is_right(&driver, &mut report);
    if options.only_cases {
        report.not_run("figures", "only cases were asked for");
    } else {
        let scale = if options.scripted {
            Scale { bytes: 8 << 20, rounds: 1, ceiling: 1 << 20, product: [128, 128, 32], products: 4 }
        } else {
            Scale { bytes: 512 << 20, rounds: 7, ceiling: 64 << 20, product: [8192, 8192, 8192], products: 40 }
        };
        let mut figures = Figures { means_nothing: options.scripted };
        report.case("rates are measured", || figures::run(&driver, &scale, &mut figures));
        report.case("the slowdown of a matrix product is measured", || slowdown::run(&driver, &scale, &mut figures));
    }
    println!("{} passed, {} failed, {} not run", report.passed, report.failed, report.not_run);
    if report.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Figures beside a product that computes nothing would say nothing.
fn the_product_is_right(driver: &Arc<dyn Driver>, report: &mut Report) {
    let case = "the matrix product that figures are taken beside is right";
    match matmul::Model::new(driver, [256, 384, 96]) {
        Ok(model) if !model.multiplies() => report.not_run(case, "this device runs no kernels of others"),
        Ok(model) => report.case(case, || model.check()),
        Err(error) => report.case(case, || Err(error.to_string())),
    }
}
