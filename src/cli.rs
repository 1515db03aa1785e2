//! The command line.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use terrace_config::ConfigError;
use tracing_subscriber::EnvFilter;

use crate::bench::BenchCommand;
use crate::config_cmd::ConfigCommand;
use crate::failure::BadInput;
use crate::object_cmd::ObjectCommand;
use crate::replay::{self, ReplayOptions};
use crate::serve::{self, ServeOptions};
use crate::tenant_cmd::TenantCommand;

/// Status of bad input: options, a configuration, a trace.
const BAD_INPUT: u8 = 2;

/// A tiered KV-cache store for LLM engines: pinned DRAM over NVMe.
///
/// Output for programs goes to stdout, everything else to stderr. The variable TERRACE_LOG sets what is logged (default: warn).
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serve the KV cache to the engines of this host over a Unix socket
    Serve(ServeOptions),
    /// Replay a request trace through the whole stack, checking every loaded byte
    Replay(Box<ReplayOptions>),
    /// Measure against limits taken in the same run
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Look into the bucket of an object tier, check it, clean it up
    Object {
        #[command(subcommand)]
        command: ObjectCommand,
    },
    /// See whose blocks the tiers hold, and erase a tenant from all of them
    Tenant {
        #[command(subcommand)]
        command: TenantCommand,
    },
    /// Check, show and describe configuration files
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// Runs the program.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    // The daemon's log has the form that its configuration asks for.
    if !matches!(arguments.command, Command::Serve(_)) {
        log_warnings();
    }
    ended(match arguments.command {
        Command::Serve(options) => serve::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Bench { command } => command.run(),
        Command::Object { command } => command.run(),
        Command::Tenant { command } => command.run(),
        Command::Config { command } => return command.run(),
    })
}

fn log_warnings() {
    let filter = EnvFilter::try_from_env("TERRACE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// The status of a command; an error is told on stderr.
fn ended(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        eprintln!("terrace: {error:#}");
        let is_bad_input = error.is::<BadInput>() || error.is::<ConfigError>();
        ExitCode::from(if is_bad_input { BAD_INPUT } else { 1 })
    })
}
