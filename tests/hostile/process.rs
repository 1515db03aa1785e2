//! The daemon as a process: what it takes, and what its pool holds.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::ways;

/// `terrace serve` with two pools, one of them for another namespace. It is killed when this is dropped.
pub struct Daemon {
    place: PathBuf,
    child: Child,
}

/// The most that the daemon took.
pub struct Peak {
    pub memory_kib: u64,
    pub descriptors: u64,
}

impl Daemon {
    pub fn start(place: &Path) -> Self {
        let text = format!(
            "[primary]\nblocks = 4000\nhuge_pages = \"off\"\n[geometry]\nblock_bytes = 16384\n\
             [server]\nsocket = {:?}\npools = 2\nmessage_bytes = \"1MiB\"\nkeys_per_message = 8192\njobs_per_session = 1024\n\
             [[tier]]\ntype = \"nvme\"\npaths = [{:?}]\nblocks = 16000\n",
            place.join("s"),
            place.join("nvme"),
        );
        std::fs::create_dir_all(place.join("nvme")).expect("a directory");
        std::fs::write(place.join("terrace.toml"), text).expect("a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.env("TERRACE_LOG", "error").args(["serve", "--config"]).arg(place.join("terrace.toml"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("terrace serve");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let ready = log.by_ref().map_while(Result::ok).find(|line| line.contains("ready"));
        assert!(ready.is_some(), "the daemon ended before it was ready: {:?}", child.wait());
        // The pipe must not fill; and what went wrong is worth seeing.
        std::thread::spawn(move || log.map_while(Result::ok).for_each(|line| eprintln!("daemon: {line}")));
        Self { place: place.to_path_buf(), child }
    }

    pub fn socket(&self) -> PathBuf {
        self.place.join("s")
    }

    /// Its own memory in KiB: not the region, which is shared.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the daemon lives");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a kernel that tells");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }

    pub fn descriptors(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the daemon lives").count() as u64
    }

    /// Waits until neither pool has a reader, a slot being written, a job or a lease.
    pub fn await_idle(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let held: Vec<(String, f64)> = [ways::NAMESPACE, ways::OTHER]
                .into_iter()
                .flat_map(|model| ways::held(&self.socket(), model))
                .collect();
            if held.iter().all(|(_, value)| *value == 0.0) {
                return;
            }
            assert!(Instant::now() < end, "this is left: {held:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the daemon is there");
    }

    /// Waits for its end.
    pub fn ends(mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < end, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peak {
    /// Looks until told that it is over.
    pub fn watch(daemon: &Daemon, over: &AtomicBool) -> Self {
        let mut peak = Self { memory_kib: 0, descriptors: 0 };
        while !over.load(Ordering::Acquire) {
            peak.memory_kib = peak.memory_kib.max(daemon.memory());
            peak.descriptors = peak.descriptors.max(daemon.descriptors());
            std::thread::sleep(Duration::from_millis(10));
        }
        peak
    }
}
