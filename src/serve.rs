//! `terrace serve`: the daemon, from the command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_config::{Config, LogFormat};
use terrace_connector::server::{Server, ServerHandle, ServerOptions};
use tracing_subscriber::EnvFilter;

use crate::failure::BadInput;
use crate::metrics_endpoint::MetricsEndpoint;
use crate::notify::notify;

/// Status after a second signal.
const STOPPED_AT_ONCE: i32 = 130;
/// How often it is looked whether the daemon has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Serve the KV cache to the engines of this host over a Unix socket
#[derive(Clone, Debug, clap::Args)]
pub struct ServeOptions {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Listen here, instead of at [server] socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT, then drains: running jobs and stores have `deadlines.drain` to finish. A second
/// signal ends the process at once.
pub fn run(options: &ServeOptions) -> Result<ExitCode> {
    let config = Config::load(&options.config)?;
    log_to_stderr(config.server.log_format);
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("signals cannot be taken")?;
    // Before anything is made that records times.
    if let Some(address) = &config.server.metrics {
        let endpoint = MetricsEndpoint::start(address)?;
        eprintln!("terrace: metrics at http://{}/metrics", endpoint.address());
    }
    let own = ServerOptions { socket: options.socket.clone(), ..ServerOptions::default() };
    let handle = Server::start(&config, own).map_err(|error| {
        let text = causes(&error);
        if error.is_bad_input() { BadInput::new(text).into() } else { anyhow::Error::msg(text) }
    })?;
    eprintln!("terrace: ready, listening on {}", handle.socket().display());
    notify("READY=1");
    signals.forever().next();
    drain(&config, &handle, &mut signals);
    Ok(ExitCode::SUCCESS)
}

fn drain(config: &Config, handle: &ServerHandle, signals: &mut Signals) {
    notify("STOPPING=1");
    eprintln!("terrace: draining, up to {:?}; a second signal stops at once", config.deadlines.drain);
    handle.drain(config.deadlines.drain);
    while !handle.is_over() {
        if signals.pending().next().is_some() {
            eprintln!("terrace: stopped at once");
            std::process::exit(STOPPED_AT_ONCE);
        }
        std::thread::sleep(LOOK);
    }
    handle.join();
    eprintln!("terrace: ended");
}

/// Lines of the log on stderr; the variable TERRACE_LOG sets what is logged (default: info).
fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TERRACE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// An error with its causes, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
