//! Workers with GPU memory that the script plays: here, or in a process of their own that takes orders line by line.
#![allow(dead_code, reason = "each test file uses a part")]
#![expect(unsafe_code, reason = "GPU memory is looked at by its address")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use terrace_config::{Geometry, Namespace};
use terrace_connector::client::{ClientError, ClientOptions, DeviceMemory, DeviceWorker};
use terrace_connector::protocol::*;
use terrace_connector::server::{DeviceSource, ServerOptions};
use terrace_kernels::cuda::Driver;
use terrace_kernels::cuda::scripted::{Script, Scripted};
use terrace_kernels::layout::PageTensor;
use terrace_kernels::{CopyError, StreamHandle};
use terrace_primary::Key;

use super::daemon::{BLOCK_BYTES, HASH_BYTES, PATIENCE, hello};

/// GPU blocks of a worker, and of a chunk.
pub const BLOCKS: u32 = 24;
pub const PER_CHUNK: u32 = 4;
/// A worker's part of a slot.
pub const PART_BYTES: u32 = 1024;
/// What is in pages that nobody wrote.
const POISON: u8 = 0xEE;
/// (Allocation, offset, page, stride) of each tensor: two that lie in turn and one apart; and one behind them in the same allocation.
const TENSORS: [&[(usize, usize, usize, usize)]; 2] =
    [&[(0, 0, 96, 192), (0, 96, 96, 192), (1, 0, 64, 64)], &[(0, 192 * BLOCKS as usize, 100, 128)]];
const ALLOCATIONS: [usize; 2] = [(192 + 128) * BLOCKS as usize, 64 * BLOCKS as usize];

/// The device of a daemon.
#[derive(Debug)]
pub struct OneDevice(pub Arc<Scripted>);

impl DeviceSource for OneDevice {
    fn device(&self, uuid: [u8; 16]) -> Result<Arc<dyn Driver>, CopyError> {
        assert_ne!(uuid, [0xff; 16], "a source that panics");
        let known = uuid == self.0.facts().uuid;
        if known { Ok(Arc::clone(&self.0) as _) } else { Err(CopyError::Invalid("another device".to_owned())) }
    }
}

pub fn device(seed: u64) -> Arc<Scripted> {
    Scripted::new(Script { seed, has_batch: true, has_kernel: true, unified: seed.is_multiple_of(2) })
}

pub fn with_device(device: &Arc<Scripted>) -> ServerOptions {
    ServerOptions { devices: Some(Arc::new(OneDevice(Arc::clone(device)))), ..ServerOptions::default() }
}

/// Two groups, four GPU blocks a chunk.
pub fn shaped(hello: Hello) -> Hello {
    let geometry = WireGeometry { blocks_per_chunk: PER_CHUNK, groups: 2, ..hello.geometry };
    Hello { geometry, ..hello }
}

pub fn with_feature(hello: Hello) -> Hello {
    Hello { features: vec![DEVICE_COPIES.to_owned()], ..hello }
}

pub fn group_keys(group: u32, range: std::ops::Range<u32>) -> Vec<u8> {
    let key = |n: u32| {
        let mut hash = [0; HASH_BYTES as usize];
        hash[..4].copy_from_slice(&n.to_be_bytes());
        Key::new(&hash, group).expect("a key")
    };
    let mut bytes = Vec::new();
    keys_to_bytes(&range.map(key).collect::<Vec<_>>(), &mut bytes);
    bytes
}

/// A worker in this process.
pub struct Hand {
    pub worker: Option<DeviceWorker>,
    pub device: Arc<Scripted>,
    pub driver: Arc<dyn Driver>,
    pub stream: StreamHandle,
    pub memory: DeviceMemory,
    bases: Vec<usize>,
    rank: u32,
    /// Was told and not asked for.
    told: Vec<CopiedJob>,
}

impl Hand {
    /// Without a session.
    pub fn new(device: &Arc<Scripted>, rank: u32) -> Self {
        let driver: Arc<dyn Driver> = Arc::clone(device) as _;
        let bases: Vec<usize> = ALLOCATIONS.iter().map(|len| driver.allocate(*len).expect("memory")).collect();
        let tensor = |&(allocation, offset, page_bytes, page_stride): &(usize, usize, usize, usize)| PageTensor {
            base: bases[allocation] + offset,
            num_blocks: BLOCKS,
            page_bytes,
            page_stride,
        };
        let groups = TENSORS.iter().map(|tensors| tensors.iter().map(tensor).collect()).collect();
        let part_offset = 512 + 2048 * rank;
        let memory = DeviceMemory { groups, part_offset, part_bytes: PART_BYTES, null_block: Some(0) };
        let stream = driver.create_stream().expect("a stream");
        Self { worker: None, device: Arc::clone(device), driver, stream, memory, bases, rank, told: Vec::new() }
    }

    /// With a session that has handed its memory over.
    pub fn attached(device: &Arc<Scripted>, socket: &Path, engine: &str, rank: u32) -> Self {
        let mut hand = Self::new(device, rank);
        let mut worker = open(socket, engine, rank).expect("a session");
        worker.attach(&hand.driver, &hand.memory).expect("it is attached");
        hand.worker = Some(worker);
        hand
    }

    pub fn worker(&mut self) -> &mut DeviceWorker {
        self.worker.as_mut().expect("a session")
    }

    pub fn copy(&mut self, store: bool, jobs: Vec<CopyJob>) {
        let stream = self.stream;
        // SAFETY: the stream is of the hand's device, and lives as long as it.
        unsafe { self.worker().copy(store, jobs, stream) }.expect("it is sent");
    }

    /// How the copies of a job ended.
    pub fn copied(&mut self, job: u64) -> CopiedJob {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.told.iter().position(|copied| copied.job == job) {
                let found = self.told.remove(at);
                if found.ok {
                    let stream = self.stream;
                    // SAFETY: as in `copy`.
                    unsafe { self.worker().hold_back(true, stream) }.expect("it is waited for");
                }
                return found;
            }
            assert!(Instant::now() < end, "job {job} is not copied");
            let told = self.worker().copied(PATIENCE).expect("an answer");
            self.told.extend(told);
        }
    }

    /// Address and length of a page.
    fn page(&self, group: usize, tensor: usize, block: u32) -> (usize, usize) {
        let (allocation, offset, page, stride) = TENSORS[group][tensor];
        (self.bases[allocation] + offset + stride * block as usize, page)
    }

    /// Random data that follows from seed, rank and place.
    pub fn fill(&self, seed: u64) {
        for (group, tensors) in TENSORS.iter().enumerate() {
            for (tensor, block) in (0..tensors.len()).flat_map(|tensor| (0..BLOCKS).map(move |block| (tensor, block))) {
                let (page, len) = self.page(group, tensor, block);
                let bytes = content(seed, self.rank, group, tensor, block, len);
                // SAFETY: in an allocation of this hand, which nothing else touches now.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), page as *mut u8, len) };
            }
        }
    }

    pub fn poison(&self) {
        for (base, len) in self.bases.iter().zip(ALLOCATIONS) {
            // SAFETY: an allocation of this hand, which nothing else touches now.
            unsafe { std::ptr::write_bytes(*base as *mut u8, POISON, len) };
        }
    }

    /// What is wrong, if of a group each `(to, from)` does not hold what block `from` held, or another block was written.
    pub fn wrong(&self, seed: u64, group: usize, pairs: &[(u32, u32)]) -> Option<String> {
        for (tensor, block) in (0..TENSORS[group].len()).flat_map(|t| (0..BLOCKS).map(move |block| (t, block))) {
            let (page, len) = self.page(group, tensor, block);
            let wanted = match pairs.iter().find(|(to, _)| *to == block) {
                Some((_, from)) => content(seed, self.rank, group, tensor, *from, len),
                None => vec![POISON; len],
            };
            let mut found = vec![0; len];
            // SAFETY: as in `fill`.
            unsafe { std::ptr::copy_nonoverlapping(page as *const u8, found.as_mut_ptr(), len) };
            if found != wanted {
                return Some(format!("group {group}, tensor {tensor}, block {block}: {found:02x?}"));
            }
        }
        None
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Its own records, which nobody waited for.
        self.device.run_all();
        for base in &self.bases {
            // SAFETY: this hand's; the test has waited until nobody copies from or to it.
            unsafe { self.driver.free(*base) };
        }
        // SAFETY: this hand's.
        unsafe { self.driver.destroy_stream(self.stream) };
    }
}

pub fn open(socket: &Path, engine: &str, rank: u32) -> Result<DeviceWorker, ClientError> {
    let geometry = Geometry {
        block_bytes: BLOCK_BYTES,
        tokens_per_block: 16,
        blocks_per_chunk: PER_CHUNK,
        groups: 2,
        hash_bytes: HASH_BYTES,
    };
    let namespace = Namespace { model: hello("worker", "").namespace.model, ..Namespace::default() };
    DeviceWorker::open(&ClientOptions::new(socket, namespace, geometry), engine, rank)
}

fn content(seed: u64, rank: u32, group: usize, tensor: usize, block: u32, len: usize) -> Vec<u8> {
    let mut state = seed ^ u64::from(rank) << 40 ^ (group as u64) << 32 ^ (tensor as u64) << 24 ^ u64::from(block);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn job(name: u64, blocks: &[u32], sizes: [u32; 2], firsts: [u32; 2], slots: &[u32]) -> CopyJob {
    CopyJob {
        job: name,
        blocks: numbers_to_bytes(blocks.iter().copied()),
        sizes: numbers_to_bytes(sizes),
        firsts: numbers_to_bytes(firsts),
        slots: numbers_to_bytes(slots.iter().copied()),
    }
}

/// Set in a child: socket, engine and rank.
const CHILD: &str = "TERRACE_TEST_HAND";

/// A worker in a process of its own.
pub struct HandProcess {
    pub child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl HandProcess {
    /// Runs the calling test once more, which begins with [`obey_if_child`].
    pub fn start(test: &str, socket: &Path, engine: &str, rank: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{} {engine} {rank}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let (orders, answers) = (child.stdin.take().expect("input"), child.stdout.take().expect("output"));
        let mut hand = Self { child, orders, lines: BufReader::new(answers).lines() };
        assert_eq!(hand.answer(), "attached");
        hand
    }

    pub fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it takes orders");
        self.answer()
    }

    fn answer(&mut self) -> String {
        let answers = self.lines.by_ref().map_while(Result::ok);
        let mut answers = answers.filter_map(|line| line.strip_prefix("> ").map(str::to_owned));
        answers.next().expect("the child answers")
    }

    pub fn copy(&mut self, store: bool, job: &CopyJob) {
        let mut line = format!("copy {}", u8::from(store));
        let mut body = Vec::new();
        encode(job, &mut body).expect("it encodes");
        line.push(' ');
        body.iter().for_each(|byte| write!(line, "{byte:02x}").expect("a string"));
        assert_eq!(self.ask(&line), "sent");
    }

    pub fn copied(&mut self, job: u64) -> (bool, u64) {
        let answer = self.ask(&format!("copied {job}"));
        let (ok, bytes) = answer.split_once(' ').expect("two values");
        (ok == "true", bytes.parse().expect("a number"))
    }

    pub fn complete(&mut self, job: u64, ok: bool) {
        assert_eq!(self.ask(&format!("complete {job} {}", u8::from(ok))), "sent");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it is gone");
    }
}

impl Drop for HandProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child: obeys until it is told nothing more, and ends the process.
pub fn obey_if_child() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let parts: Vec<&str> = place.split(' ').collect();
    let rank = parts[2].parse().expect("a rank");
    let device = device(u64::from(rank) + 3);
    let mut hand = Hand::attached(&device, &PathBuf::from(parts[0]), parts[1], rank);
    println!("\n> attached");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let answer = match words[0] {
            "fill" => {
                hand.fill(number(1));
                "filled".to_owned()
            }
            "poison" => {
                hand.poison();
                "poisoned".to_owned()
            }
            "copy" => {
                let bytes: Vec<u8> = (0..words[2].len() / 2)
                    .map(|at| u8::from_str_radix(&words[2][2 * at..2 * at + 2], 16).expect("digits"))
                    .collect();
                hand.copy(words[1] == "1", vec![decode("CopyJob", &bytes).expect("a job")]);
                "sent".to_owned()
            }
            "copied" => {
                let copied = hand.copied(number(1));
                format!("{} {}", copied.ok, copied.bytes)
            }
            "complete" => {
                hand.worker().complete(&[(number(1), number(2) == 1)]).expect("it is sent");
                "sent".to_owned()
            }
            // Seed, group, then blocks: to and from in turn.
            "wrong" => {
                let blocks: Vec<u32> = words[3..].iter().map(|word| word.parse().expect("a block")).collect();
                let pairs: Vec<(u32, u32)> = blocks.chunks(2).map(|pair| (pair[0], pair[1])).collect();
                hand.wrong(number(1), number(2) as usize, &pairs).unwrap_or_else(|| "nothing".to_owned())
            }
            other => panic!("what is {other}?"),
        };
        println!("> {answer}");
    }
    std::process::exit(0);
}
