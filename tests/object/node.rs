//! A node: a process that replays its part of the traffic over the bucket.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use terrace_test_s3::{ACCESS_KEY, Proxy, SECRET_KEY};

use crate::bucket::BUCKET;
use crate::common::assert_sound;
use crate::number;

/// How long a node may take to its end.
const PATIENCE: Duration = Duration::from_secs(120);
/// The environment's credentials of other tools are not ours.
const ENV_PREFIX: &str = "TERRACE_TEST_";

/// What a node is configured with.
#[derive(Clone)]
pub struct Setup {
    pub block_bytes: u32,
    pub primary_blocks: u32,
    /// Path in the bucket.
    pub prefix: &'static str,
    /// Further keys of the tier.
    pub tier: String,
    /// Further tables.
    pub tables: &'static str,
    pub secret_key: &'static str,
}

impl Default for Setup {
    /// Small blocks, and a primary that is too small for the traffic.
    fn default() -> Self {
        Self {
            block_bytes: 16 << 10,
            primary_blocks: 300,
            prefix: "shared",
            tier: String::new(),
            tables: "",
            secret_key: SECRET_KEY,
        }
    }
}

impl Setup {
    fn text(&self, endpoint: &str) -> String {
        let Self { block_bytes, primary_blocks, prefix, tier, tables, .. } = self;
        format!(
            "[primary]\nblocks = {primary_blocks}\n[geometry]\nblock_bytes = {block_bytes}\n{tables}\n\
             [[tier]]\ntype = \"object\"\ncapacity = \"64GiB\"\nurl = \"s3://{BUCKET}/{prefix}\"\n\
             endpoint = {endpoint:?}\ncredentials = \"environment\"\nenv_prefix = {ENV_PREFIX:?}\n{tier}\n"
        )
    }

    /// Starts a node that asks the bucket through `proxy`.
    pub fn start(&self, proxy: &Proxy, arguments: &str) -> Node {
        self.start_at(&proxy.endpoint(), arguments)
    }

    /// Starts a node that asks the bucket at `endpoint`.
    pub fn start_at(&self, endpoint: &str, arguments: &str) -> Node {
        let place = tempfile::tempdir().expect("a directory");
        let config = place.path().join("terrace.toml");
        std::fs::write(&config, self.text(endpoint)).expect("a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.args(["replay", "--json", "--config"]).arg(config).args(arguments.split_whitespace());
        command.env(format!("{ENV_PREFIX}ACCESS_KEY_ID"), ACCESS_KEY);
        command.env(format!("{ENV_PREFIX}SECRET_ACCESS_KEY"), self.secret_key);
        command.env_remove("TERRACE_LOG");
        // Files, as a pipe that nobody reads fills.
        let file = |name| File::create(place.path().join(name)).expect("a file");
        command.stdin(Stdio::null()).stdout(file("report")).stderr(file("log"));
        Node { child: command.spawn().expect("terrace starts"), place }
    }

    /// A node, to its end.
    pub fn run(&self, proxy: &Proxy, arguments: &str) -> Outcome {
        self.start(proxy, arguments).end()
    }
}

/// A running node. It is killed when this is dropped.
pub struct Node {
    child: Child,
    place: TempDir,
}

/// What became of a node.
pub struct Outcome {
    pub report: Value,
    pub log: String,
}

impl Outcome {
    /// Blocks loaded from the bucket that were hits.
    pub fn external_hits(&self) -> u64 {
        number(&self.report, "/hits/nvme")
    }

    /// Blocks that were computed.
    pub fn misses(&self) -> u64 {
        number(&self.report, "/misses")
    }
}

impl Node {
    /// Waits until it has done all its requests. No block was wrong and nothing was left behind.
    pub fn end(mut self) -> Outcome {
        let status = self.wait();
        let log = self.read("log");
        assert!(status.success(), "a node ended with {status}: {log}\n{}", self.read("report"));
        let report: Value = serde_json::from_str(&self.read("report")).expect("one JSON object on stdout");
        assert_sound(&report, number(&report, "/requests"), &log);
        assert_eq!(number(&report, "/unexpected"), 0, "{report:#}");
        Outcome { report, log }
    }

    /// Tells it to take no more requests, and waits as [`Self::end`] does until those that it has are done.
    pub fn stop(mut self) -> Outcome {
        assert!(self.child.try_wait().expect("wait").is_none(), "a node ended by itself: {}", self.read("log"));
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, Signal::TERM).expect("it is there");
        self.end()
    }

    /// kill -9, while it is at work.
    pub fn kill(mut self) {
        assert!(self.child.try_wait().expect("wait").is_none(), "a node ended by itself: {}", self.read("log"));
        self.child.kill().expect("it is there");
        self.child.wait().expect("it ends");
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < deadline, "a node does not end: {}", self.read("log"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.place.path().join(name)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
