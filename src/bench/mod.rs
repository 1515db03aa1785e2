//! `terrace bench`: each command measures its limit in the same run and prints the ratio to it.

mod copy;
mod fio;
mod lookup;
mod nvme;
mod object;
mod outcome;
mod socket;

use std::path::PathBuf;
use std::process::ExitCode;

/// `terrace bench ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Lookup, store and load bookkeeping of the manager, beside a bare hash table
    Lookup {
        /// Largest number of resident blocks; sizes go from 10^4 up to it in powers of ten
        #[arg(long, default_value_t = 10_000_000)]
        blocks: u32,
        /// One JSON object on stdout
        #[arg(long)]
        json: bool,
    },
    /// Stores and loads of the NVMe tier, beside fio on the same directory
    Nvme {
        /// Directory on the disk to measure; a folder in it is made and removed
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// Rounds, each with fio before and after; medians are printed
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Bytes written a round and block size
        #[arg(long, default_value_t = 1 << 30)]
        bytes: u64,
        /// One JSON object on stdout
        #[arg(long)]
        json: bool,
    },
    /// Stores, loads and visibility of the object tier, beside a bare client on the same server
    Object(object::ObjectBench),
    /// Calls over the socket of a daemon that is started for it, beside an empty round trip and the same calls in process
    Socket {
        /// One JSON object on stdout
        #[arg(long)]
        json: bool,
    },
    /// The host copy engine, beside plain memcpy
    Copy {
        /// One JSON object on stdout
        #[arg(long)]
        json: bool,
    },
}

impl BenchCommand {
    /// Measures and prints. Blocks until done; progress goes to stderr.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let (outcome, json) = match self {
            Self::Lookup { blocks, json } => (lookup::run(*blocks)?, json),
            Self::Nvme { dir, rounds, bytes, json } => (nvme::run(dir, *rounds, *bytes)?, json),
            Self::Object(options) => (object::run(options)?, &options.json),
            Self::Socket { json } => (socket::run()?, json),
            Self::Copy { json } => (copy::run()?, json),
        };
        if *json {
            outcome.print_json()?
        } else {
            outcome.print_table()
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The middle of some measurements (the upper one of an even number); zero of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Tells on stderr what is being measured.
fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("  {what}");
}
