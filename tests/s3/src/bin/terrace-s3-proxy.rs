//! The proxy for scripts: network namespaces, benches.
//!
//! Commands are lines on standard input; counts are one line of JSON on standard output, on `counts` or SIGUSR1 and at
//! the end. The end is `quit`, SIGTERM or SIGINT. An input that ends does not end the proxy.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use terrace_test_s3::{Fault, Proxy, Rule};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Stands between S3 clients and a server, counts what passes, makes faults.
///
/// Lines on standard input: `counts`, `reset`, `hang on|off`, `partition on|off`, `latency MILLISECONDS`,
/// `fail SHARE [STATUS]`, `fault KIND SHARE [PART]` (as `fault wrong-bytes 0.01 /segments/`), `mix SHARE` (any fault
/// that ends at once), `clear`, `quit`. A SHARE is 0 to 1. KINDs: 500, 503, 404 and so on, 500-after, latency-MS,
/// reset-before, reset-after, reset-in-upload, reset-in-body, short-body, truncated, wrong-bytes, wrong-bytes-BITS,
/// wrong-range, wrong-range-honest, range-ignored, stale-list, hang.
#[derive(Parser)]
struct Options {
    /// Where clients find it, as 127.0.0.1:9000.
    #[arg(long)]
    listen: SocketAddr,
    /// The server.
    #[arg(long)]
    upstream: SocketAddr,
    /// What chance is drawn from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrace-s3-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let proxy = Proxy::start_at(options.listen, options.upstream)?;
    eprintln!("terrace-s3-proxy: {proxy:?}");
    let (lines, mut read) = mpsc::channel(16);
    thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut counts = signal(SignalKind::user_defined1())?;
        let mut end = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            tokio::select! {
                Some(line) = read.recv() => match obey(&proxy, &line, options.seed) {
                    Ok(true) => {}
                    Ok(false) => return Ok::<_, std::io::Error>(()),
                    Err(fault) => eprintln!("terrace-s3-proxy: {line:?}: {fault}"),
                },
                Some(()) = counts.recv() => print(&proxy)?,
                Some(()) = end.recv() => return Ok(()),
                Some(()) = interrupt.recv() => return Ok(()),
            }
        }
    })?;
    print(&proxy)?;
    Ok(())
}

/// One command; `false`: the end.
fn obey(proxy: &Proxy, line: &str, seed: u64) -> Result<bool, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [] => {}
        ["quit"] => return Ok(false),
        ["counts"] => print(proxy).map_err(|error| error.to_string())?,
        ["reset"] => proxy.reset(),
        ["clear"] => proxy.clear(),
        ["hang", state] => proxy.hang(switch(state)?),
        ["partition", state] => proxy.partition(switch(state)?),
        ["latency", millis] => {
            let millis = millis.parse().map_err(|_| "milliseconds are a whole number")?;
            proxy.add(Rule::new(Fault::Latency(Duration::from_millis(millis))));
        }
        ["fail", share] => add(proxy, Fault::Status(500), share, "", seed)?,
        ["fail", share, status] => add(proxy, status.parse()?, share, "", seed)?,
        ["fault", kind, share] => add(proxy, kind.parse()?, share, "", seed)?,
        ["fault", kind, share, part] => add(proxy, kind.parse()?, share, part, seed)?,
        ["mix", share] => {
            proxy.add(Rule::any(Fault::all()).share(parsed(share)?).seed(seed));
        }
        _ => return Err("not a command; see --help".into()),
    }
    Ok(true)
}

fn add(proxy: &Proxy, fault: Fault, share: &str, part: &str, seed: u64) -> Result<(), String> {
    proxy.add(Rule::new(fault).share(parsed(share)?).containing(part).seed(seed));
    Ok(())
}

fn parsed(share: &str) -> Result<f64, String> {
    share.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "a share is 0 to 1".into())
}

fn switch(state: &str) -> Result<bool, String> {
    match state {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".into()),
    }
}

fn print(proxy: &Proxy) -> std::io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", proxy.counts().to_json())?;
    out.flush()
}
