//! Two processes: both ways through handles, and kill -9 of each side in the middle of copies.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use terrace_kernels::cuda::{Driver, PathChoice};
use terrace_kernels::{CopyEngine, Direction, Order};

use super::Report;
use super::peer::{Attached, Held};
use super::rig::{Place, Rig};

/// A process that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the other process is started, and what differs where there is no GPU.
pub struct Setup<'a> {
    pub driver: &'a Arc<dyn Driver>,
    /// Arguments that name the device.
    pub arguments: &'a [String],
    pub bytes: usize,
    /// Copies that are in flight when a process is killed.
    pub in_flight: usize,
    /// The script's devices do not see each other's events: what they order is waited for instead.
    pub waits: bool,
}

/// The other process, killed when this is dropped.
struct Peer {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    fn start(setup: &Setup<'_>, role: &str) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args(setup.arguments).arg(format!("--peer={role}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, input, lines })
    }

    /// Asks; the answer.
    fn ask(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.input, "{line}").map_err(|error| format!("{line}: {error}"))?;
        let answer = self.lines.recv_timeout(PATIENCE).map_err(|_| format!("{line}: no answer"))?;
        if answer.starts_with("error: ") { Err(format!("{line}: {answer}")) } else { Ok(answer) }
    }

    fn expect(&mut self, line: &str, wanted: &str) -> Result<(), String> {
        let answer = self.ask(line)?;
        if answer == wanted { Ok(()) } else { Err(format!("{line}: {answer}")) }
    }

    /// SIGKILL, and its end.
    fn kill(&mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait()).map(|_| ()).map_err(|error| error.to_string())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

pub fn run(setup: &Setup<'_>, report: &mut Report) {
    report.case("two processes: a daemon copies a worker's memory both ways", || both_ways(setup));
    report.case("two processes: kill -9 of the worker in the middle of copies", || worker_killed(setup));
    report.case("two processes: kill -9 of the daemon in the middle of copies", || daemon_killed(setup));
}

fn right(answer: &str) -> Result<(), String> {
    if answer == "right" { Ok(()) } else { Err(answer.to_owned()) }
}

fn attach(setup: &Setup<'_>, worker: &mut Peer) -> Result<Attached, String> {
    let introduction = worker.ask("introduce")?;
    let words: Vec<&str> = introduction.split(' ').collect();
    let attached = Attached::new(setup.driver, &words)?;
    worker.expect(&format!("hear {}", attached.event()?), "heard")?;
    Ok(attached)
}

fn both_ways(setup: &Setup<'_>) -> Result<(), String> {
    let mut worker = Peer::start(setup, "worker")?;
    let mut daemon = attach(setup, &mut worker)?;
    for round in 0..6_u8 {
        // The fill is in the worker's stream when it answers; the store waits for its event.
        worker.expect(&format!("fill {}", 10 + round), "filled")?;
        right(&daemon.store(10 + round)?)?;
        let id = daemon.load(100 + round, setup.waits)?;
        // The worker's stream waits for the daemon's event.
        worker.expect(&format!("check {}", 100 + round), "right")?;
        daemon.finish(id)?;
    }
    Ok(())
}

fn worker_killed(setup: &Setup<'_>) -> Result<(), String> {
    let mut worker = Peer::start(setup, "worker")?;
    let mut daemon = attach(setup, &mut worker)?;
    let mut other = Rig::new(setup.driver, PathChoice::Auto, setup.bytes, true).map_err(|error| error.to_string())?;
    worker.expect("fill 1", "filled")?;
    for copy in 0..setup.in_flight {
        daemon.submit(if copy % 2 == 0 { Direction::DeviceToHost } else { Direction::HostToDevice })?;
    }
    worker.kill()?;
    daemon.engine.drain();
    let mut done = Vec::new();
    daemon.engine.poll(&mut done);
    if done.len() != setup.in_flight {
        return Err(format!("{} of {} copies are reported", done.len(), setup.in_flight));
    }
    let failed = done.iter().filter(|copy| copy.result.is_err()).count();
    println!("  {failed} of {} copies failed when the worker was killed", done.len());
    if daemon.engine.is_lost() {
        return Err("the engine of the worker lost the device".to_owned());
    }
    drop(daemon);
    goes_on(&mut other)?;
    // And for the next worker.
    let mut next = Peer::start(setup, "worker")?;
    let mut daemon = attach(setup, &mut next)?;
    next.expect("fill 2", "filled")?;
    right(&daemon.store(2)?)
}

/// Copies of somebody else on this device.
fn goes_on(rig: &mut Rig) -> Result<(), String> {
    rig.fill_device(9).map_err(|error| error.to_string())?;
    let _ = rig.host.fill(0, rig.bytes, 0);
    let pages: Vec<Place> = (0..16).map(|page| Place { device: page * 9000, host: page * 8192, len: 8192 }).collect();
    let id = rig.submit(Direction::DeviceToHost, &pages, Order::default()).map_err(|error| error.to_string())?;
    rig.finish(id).map_err(|error| format!("another engine: {error}"))?;
    let mut found = vec![0; 16 * 8192];
    let _ = rig.host.read(0, &mut found);
    if found.iter().all(|byte| *byte == 9) { Ok(()) } else { Err("another engine's bytes are wrong".to_owned()) }
}

fn daemon_killed(setup: &Setup<'_>) -> Result<(), String> {
    let mut worker = Held::new(setup.driver, setup.bytes)?;
    let introduction = worker.introduction()?;
    let mut daemon = Peer::start(setup, "daemon")?;
    let event = daemon.ask(&format!("attach {introduction}"))?;
    worker.hear(&event)?;
    worker.fill(3, setup.waits)?;
    daemon.expect("store 3", "right")?;
    daemon.expect("run", "copying")?;
    daemon.kill()?;
    // Its memory is its own again, with no event of the dead daemon in the way.
    let mut next = Peer::start(setup, "daemon")?;
    let event = next.ask(&format!("attach {introduction}"))?;
    worker.hear(&event)?;
    worker.fill(4, true)?;
    right(&worker.check(4)?)?;
    next.expect("store 4", "right")?;
    next.expect("load 5", "loaded")?;
    right(&worker.check(5)?)
}
