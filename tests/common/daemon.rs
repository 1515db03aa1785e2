//! A daemon under test: `terrace serve` as a child process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Replay;

/// A running daemon. It is killed when this is dropped.
pub struct Daemon {
    place: PathBuf,
    child: Child,
    metrics: Option<String>,
}

impl Daemon {
    /// Starts a daemon with this configuration and waits until it listens. `{place}` in it stands for the directory `place`, where its
    /// socket is `terrace.sock` and its blocks lie in `nvme`.
    pub fn start(place: &Path, config: &str) -> Self {
        std::fs::create_dir_all(place.join("nvme")).expect("a directory");
        let text = config.replace("{place}", place.to_str().expect("a name in UTF-8"));
        std::fs::write(place.join("terrace.toml"), text).expect("a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(["serve", "--config"]).arg(place.join("terrace.toml"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("terrace serve");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let mut metrics = None;
        let is_ready = log.by_ref().any(|line| {
            let address = line.split_once("http://").and_then(|(_, address)| address.strip_suffix("/metrics"));
            metrics = metrics.take().or(address.map(str::to_owned));
            line.contains("ready")
        });
        assert!(is_ready, "the daemon ended before it was ready: {:?}", child.wait());
        // The pipe must not fill.
        std::thread::spawn(move || log.for_each(drop));
        Self { place: place.to_path_buf(), child, metrics }
    }

    pub fn socket(&self) -> PathBuf {
        self.place.join("terrace.sock")
    }

    /// Where its NVMe tier keeps its files.
    pub fn nvme(&self) -> PathBuf {
        self.place.join("nvme")
    }

    /// Host and port of its metrics, as it said them at its start.
    pub fn metrics(&self) -> &str {
        self.metrics.as_deref().expect("the daemon says where its metrics are")
    }

    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: sends a signal to a child that is not waited for yet.
        #[expect(unsafe_code, reason = "a signal")]
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0, "the daemon is there");
    }

    pub fn kill(mut self) {
        self.child.kill().expect("the daemon is there");
        self.child.wait().expect("it ends");
    }

    /// A replay through this daemon.
    pub fn replay(&self) -> Replay {
        let mut replay = Replay::over_socket(&self.socket());
        replay.command().env("TERRACE_LOG", "error");
        replay
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
