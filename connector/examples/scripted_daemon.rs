//! A daemon with a GPU that exists only in host memory: for tests of workers on machines without one, in any language.
//!
//! `scripted_daemon --config FILE` serves the configuration as `terrace serve` does, with the scripted device of `terrace-kernels`, and prints
//! `ready SOCKET` when it listens. Workers use the scripted device of their own process: what that allocates the daemon can open. Lines of its
//! input: `hold` stops all copies, `go` lets them go on, `lose` loses the device, `stop` drains and ends it. After the end of its input it
//! serves on. With `[copy] path = "runs"` no path is measured when a worker attaches, which is quicker.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use terrace_config::Config;
use terrace_connector::server::{DeviceSource, Server, ServerOptions};
use terrace_kernels::CopyError;
use terrace_kernels::cuda::Driver;
use terrace_kernels::cuda::scripted::{Script, Scripted};

#[derive(Debug)]
struct OneDevice(Arc<Scripted>);

impl DeviceSource for OneDevice {
    fn device(&self, uuid: [u8; 16]) -> Result<Arc<dyn Driver>, CopyError> {
        if uuid == self.0.facts().uuid {
            Ok(Arc::clone(&self.0) as _)
        } else {
            Err(CopyError::Invalid("there is the scripted device only".to_owned()))
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted_daemon: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(flag), Some(file), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: scripted_daemon --config FILE".into());
    };
    if flag != "--config" {
        return Err("usage: scripted_daemon --config FILE".into());
    }
    let config = Config::load(std::path::Path::new(&file))?;
    let device = Scripted::new(Script { seed: 1, has_batch: true, has_kernel: true, unified: true });
    let devices: Option<Arc<dyn DeviceSource>> = Some(Arc::new(OneDevice(Arc::clone(&device))));
    let handle = Server::start(&config, ServerOptions { devices, ..ServerOptions::default() })?;
    println!("ready {}", handle.socket().display());
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        match line?.trim() {
            "hold" => device.hold_all(true),
            "go" => device.hold_all(false),
            "lose" => device.lose(),
            "stop" => {
                device.hold_all(false);
                handle.drain(config.deadlines.drain);
                handle.join();
                return Ok(());
            }
            other => eprintln!("scripted_daemon: {other:?} is none of hold, go, lose and stop"),
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
