//! `terrace object`: what operators do with the bucket of an object tier.
//!
//! Works on the bucket alone, beside running nodes or without any. Results go to stdout, progress and notes to stderr. What changes
//! the bucket says first what it would do, and does it with `--yes`.

mod figures;
mod place;
mod progress;
mod report;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use terrace_tiers::object::admin::Admin;

use place::{Place, digits};
use progress::Bar;
use report::{Entry, Report};

/// Status of `fsck` that found problems, as fsck(8) has it.
const PROBLEMS: u8 = 4;

/// `terrace object ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ObjectCommand {
    /// List the namespaces, or with --namespace the segments of one
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Sum up each namespace: segments, blocks, bytes, log, snapshot
    Stat {
        #[command(flatten)]
        place: Place,
    },
    /// One round of the collector: evict what is too much or too old, remove what nobody names, compact the log
    Gc {
        #[command(flatten)]
        place: Place,
        /// Do it; without, only say what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Check that everything fits together; changes nothing. Status 4 if there are problems
    Fsck {
        #[command(flatten)]
        place: Place,
        /// Read every block and check its bytes too
        #[arg(long)]
        deep: bool,
    },
    /// Name again in the log what lies in the bucket and no log names: after a log was lost
    RebuildIndex {
        #[command(flatten)]
        place: Place,
        /// Do it; without, only say what would be done
        #[arg(long)]
        yes: bool,
    },
}

impl ObjectCommand {
    /// Runs the command. Blocks until done; requests have deadlines of their own.
    ///
    /// # Errors
    /// A configuration, tier or namespace that is not there ([`BadInput`](crate::failure::BadInput) or `ConfigError`); a store that
    /// does not answer.
    pub fn run(&self) -> Result<ExitCode> {
        let place = self.place();
        let (tier, config) = place.tier()?;
        let admin = Admin::open(&tier, &config)?;
        let mut report = Report::new(self.word(), tier, config.url);
        // What was done before a failure is told all the same.
        let mut failed = None;
        for namespace in place.namespaces(&admin)? {
            match self.of_namespace(&admin, namespace) {
                Ok(entry) => report.entries.push(entry),
                Err(error) => {
                    failed = Some(error.context(format!("namespace {}", digits(&namespace))));
                    break;
                }
            }
        }
        if let Self::Gc { yes, .. } | Self::RebuildIndex { yes, .. } = self {
            report.applied = Some(*yes);
            if !yes {
                eprintln!("terrace: nothing was changed; with --yes it is done");
            }
        }
        match (write(&report, place.json), failed) {
            (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            (_, Some(error)) => Err(error),
            _ if report.has_problems() => Ok(ExitCode::from(PROBLEMS)),
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    fn place(&self) -> &Place {
        match self {
            Self::Ls { place }
            | Self::Stat { place }
            | Self::Gc { place, .. }
            | Self::Fsck { place, .. }
            | Self::RebuildIndex { place, .. } => place,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Ls { .. } => "ls",
            Self::Stat { .. } => "stat",
            Self::Gc { .. } => "gc",
            Self::Fsck { .. } => "fsck",
            Self::RebuildIndex { .. } => "rebuild-index",
        }
    }

    /// What the command finds in, or does to, one namespace.
    fn of_namespace(&self, admin: &Admin, namespace: [u8; 32]) -> Result<Entry> {
        let bar = Bar::new(&digits(&namespace));
        let mut tell = |progress| bar.tell(&progress);
        let entry = Entry::new(digits(&namespace));
        Ok(match self {
            Self::Ls { place } if place.namespace.is_none() => entry,
            Self::Ls { .. } => entry.with_segments(admin.list(namespace, &mut tell)?),
            Self::Stat { .. } => entry.with_figures(figures::stat(&admin.stat(namespace, &mut tell)?)),
            Self::Gc { yes, .. } => entry.with_figures(figures::collected(&admin.collect(namespace, *yes, &mut tell)?)),
            Self::Fsck { deep, .. } => {
                let checked = admin.fsck(namespace, *deep, &mut tell)?;
                entry.with_figures(figures::checked(&checked)).with_problems(checked.problems, checked.more_problems)
            }
            Self::RebuildIndex { yes, .. } => {
                let rebuilt = admin.rebuild_index(namespace, *yes, &mut tell)?;
                entry
                    .with_figures(figures::rebuilt(&rebuilt))
                    .with_problems(rebuilt.unreadable, rebuilt.more_unreadable)
            }
        })
    }
}

fn write(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match json {
        true => writeln!(out, "{:#}", report.to_json()),
        false => out.write_all(report.to_text().as_bytes()),
    }
}
