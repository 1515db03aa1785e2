//! Runs the binary under test and looks at what it left behind.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod daemon;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A `terrace replay --json` on one NVMe directory.
pub struct Replay(Command);

impl Replay {
    /// A replay whose NVMe tier lies in `nvme_dir`, which is kept.
    pub fn new(nvme_dir: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(["replay", "--json", "--nvme-dir"]).arg(nvme_dir).stdin(Stdio::null());
        Self(command)
    }

    /// A replay through the daemon at `socket`.
    pub fn over_socket(socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(["replay", "--json", "--connect"]).arg(socket).stdin(Stdio::null());
        Self(command)
    }

    /// Adds arguments.
    pub fn args<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(arguments);
        self
    }

    /// The command, to change what else of it.
    pub fn command(&mut self) -> &mut Command {
        &mut self.0
    }

    /// Starts it and leaves it running, output thrown away.
    pub fn spawn(mut self) -> Child {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("terrace starts")
    }

    /// Starts it, does `meanwhile` as soon as `when` is true, and sees it to its end as [`Self::run_with_log`] does.
    pub fn run_while(
        mut self,
        mut when: impl FnMut() -> bool,
        meanwhile: impl FnOnce(),
    ) -> (serde_json::Value, String) {
        let mut child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("terrace starts");
        while !when() {
            let is_running = child.try_wait().expect("wait").is_none();
            assert!(is_running, "the replay ended before the fault: give it more work");
            std::thread::sleep(Duration::from_millis(5));
        }
        meanwhile();
        self.judge(child.wait_with_output().expect("terrace ends"))
    }

    /// Runs it to its end. Fails the test unless it exits with 0 and prints one JSON object.
    pub fn run(self) -> serde_json::Value {
        self.run_with_log().0
    }

    /// The same, and what it wrote to stderr.
    pub fn run_with_log(mut self) -> (serde_json::Value, String) {
        let output = self.0.output().expect("terrace starts");
        self.judge(output)
    }

    fn judge(&self, output: Output) -> (serde_json::Value, String) {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{:?} ended with {}: {log}", self.0, output.status);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|fault| panic!("no JSON on stdout ({fault}): {}", String::from_utf8_lossy(&output.stdout)));
        (report, log)
    }
}

/// Every file below `root` with this extension.
pub fn files(root: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(path),
                Ok(_) if path.extension().is_some_and(|e| e == extension) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Whether some blocks are stored below this directory.
pub fn has_blocks(root: &Path) -> bool {
    files(root, "blk").len() >= 50
}

/// Disk space that the files below `root` with this extension take.
pub fn allocated_bytes(root: &Path, extension: &str) -> u64 {
    files(root, extension).iter().filter_map(|path| path.metadata().ok()).map(|m| m.blocks() * 512).sum()
}

/// The seed of this run: `TERRACE_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("TERRACE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// SplitMix64.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fails unless the replay ended as it must under any fault: no wrong block, every request finished, nothing left behind.
pub fn assert_sound(report: &serde_json::Value, requests: u64, context: &str) {
    assert_eq!(report["wrong_blocks"], 0, "{context}: {report:#}");
    assert_eq!(report["requests"], requests, "{context}: {report:#}");
    for kind in ["readers", "writing", "limbo", "jobs"] {
        assert_eq!(report["leaks"][kind], 0, "{kind}; {context}: {report:#}");
    }
}

/// A counter of the first secondary tier.
pub fn tier_counter(report: &serde_json::Value, name: &str) -> u64 {
    report["tiers"][0][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {report:#}"))
}

/// Says loudly that a test was not run, and why.
pub fn not_run(test: &str, why: &str) {
    eprintln!("\n*** NOT RUN: {test}: {why} ***\n");
}
