//! `terrace tenant`: whose blocks the tiers of a configuration hold, and the end of a tenant.
//!
//! Works on the directories and buckets themselves, without a daemon. Results go to stdout, progress and notes to stderr. What stands
//! on other hosts' disks is theirs: the command is run on each.

mod erase;
mod progress;
mod report;
mod stores;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use terrace_config::Config;

use erase::Erase;
use report::Report;
use stores::Stores;

/// Status of an erasure that left something, as that of a check that found problems.
const LEFT: u8 = 4;

/// `terrace tenant ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum TenantCommand {
    /// List the namespaces in every tier, with the tenant that each belongs to
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Remove a tenant's blocks, names and index from every tier, then list what is left. Status 4 if anything is
    Erase {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        erase: Erase,
    },
}

/// Options of all commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// The configuration file that names the tiers
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl TenantCommand {
    /// Runs the command. Blocks until done; requests have deadlines of their own.
    ///
    /// # Errors
    /// A configuration that is not there, a tenant or digest that names nothing sound ([`BadInput`](crate::failure::BadInput) or
    /// `ConfigError`); a directory that is in use; a store that does not answer.
    pub fn run(&self) -> Result<ExitCode> {
        let (Self::Ls { place } | Self::Erase { place, .. }) = self;
        let stores = Stores::open(&Config::load(&place.config)?)?;
        let mut report = Report::new(match self {
            Self::Ls { .. } => "ls",
            Self::Erase { .. } => "erase",
        });
        // What was done before a failure is told all the same.
        let ended = match self {
            Self::Ls { .. } => stores.list().map(|lines| report.lines = lines),
            Self::Erase { erase, .. } => erase.run(&stores, &mut report),
        };
        match (write(&report, place.json), ended) {
            (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            (_, Err(error)) => Err(error),
            _ if report.has_leftovers() => Ok(ExitCode::from(LEFT)),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

fn write(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match json {
        true => writeln!(out, "{:#}", report.to_json()),
        false => out.write_all(report.to_text().as_bytes()),
    }
}
