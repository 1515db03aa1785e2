//! A daemon in this process, and a client that speaks the protocol byte by byte.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use terrace_config::Config;
use terrace_connector::protocol::*;
use terrace_connector::server::{Server, ServerHandle, ServerOptions};
use terrace_primary::{Key, Region, SlotId, TableReader};

pub const BLOCK_BYTES: u32 = 4096;
pub const HASH_BYTES: u8 = 16;
pub const KEY_BYTES: usize = 20;
/// Gauges of a pool.
pub const WRITING: &str = "terrace_primary_slots{state=\"writing\"";
pub const READERS: &str = "terrace_primary_readers";
/// What no test waits for in vain.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon with a directory of its own; both go when it is dropped.
pub struct Daemon {
    pub handle: ServerHandle,
    pub config: Config,
    pub dir: tempfile::TempDir,
}

impl Daemon {
    /// `slots` slots and no tier; `more` are further lines of the configuration, where DIR stands for its directory.
    pub fn new(slots: u32, more: &str) -> Self {
        Self::with(slots, more, ServerOptions::default())
    }

    pub fn with(slots: u32, more: &str, options: ServerOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(slots, more, dir.path());
        let handle = Server::start(&config, options).expect("the daemon starts");
        Self { handle, config, dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.handle.socket().to_owned()
    }

    /// The sum of all values of a name, `NAME` or `NAME{LABEL`, over all other labels.
    pub fn stat(&self, name: &str) -> f64 {
        let (name, label) = name.split_once('{').unwrap_or((name, ""));
        let is_of = |found: &str| {
            let (found, labels) = found.split_once('{').unwrap_or((found, ""));
            found == name && labels.contains(label)
        };
        self.handle.stats().iter().filter(|(found, _)| is_of(found)).map(|(_, value)| value).sum()
    }

    /// What was refused because of a limit.
    pub fn refused(&self, limit: &str) -> f64 {
        self.stat(&format!("terrace_refused_total{{limit=\"{limit}\""))
    }

    /// Readable blocks in the primary.
    pub fn resident(&self) -> f64 {
        self.stat("terrace_primary_slots{state=\"evictable\"") + self.stat("terrace_primary_slots{state=\"in_use\"")
    }

    /// Waits until a value is what it must become.
    pub fn await_stat(&self, name: &str, want: f64) {
        until(&format!("{name} = {want}"), || self.stat(name) == want);
    }
}

pub fn config(slots: u32, more: &str, dir: &Path) -> Config {
    let dir = dir.display().to_string();
    let text = format!(
        "[primary]\nblocks = {slots}\nhuge_pages = \"off\"\nprefault_threads = 1\n\
         [geometry]\nblock_bytes = \"4KiB\"\nhash_bytes = 16\n\
         [server]\nsocket = \"{dir}/s\"\nsession_share = 1.0\n{}",
        more.replace("DIR", &dir)
    );
    Config::parse(&text, "test").expect("a good configuration")
}

/// Waits until `is` holds. A test that waits for ever names what it waited for.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "this did not come: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn key(n: u32) -> Key {
    let mut hash = [0; HASH_BYTES as usize];
    hash[..4].copy_from_slice(&n.to_be_bytes());
    Key::new(&hash, 0).expect("a key")
}

/// As they go over the socket.
pub fn keys(range: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let keys: Vec<Key> = range.into_iter().map(key).collect();
    let mut bytes = Vec::new();
    keys_to_bytes(&keys, &mut bytes);
    bytes
}

/// The bytes of a block: they follow from its number.
pub fn block(n: u32) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|at| (n.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) >> 2) as u8).collect()
}

pub fn numbers(bytes: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    numbers_from_bytes(bytes, &mut numbers).expect("whole numbers");
    numbers
}

pub fn hello(role: &str, engine: &str) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: Vec::new(),
        role: role.to_owned(),
        engine: engine.to_owned(),
        rank: 0,
        store_workers: 0,
        load_workers: 0,
        namespace: WireNamespace { model: "m".to_owned(), ..WireNamespace::default() },
        geometry: WireGeometry {
            block_bytes: BLOCK_BYTES,
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: 1,
            hash_bytes: HASH_BYTES,
        },
        foreign: None,
        client: "test".to_owned(),
    }
}

/// A scheduler that is told of `workers` workers.
pub fn scheduler(engine: &str, workers: u32) -> Hello {
    Hello { store_workers: workers, load_workers: workers, ..hello("scheduler", engine) }
}

pub fn worker(engine: &str, rank: u32) -> Hello {
    Hello { rank, ..hello("worker", engine) }
}

/// A frame as it came.
#[derive(Debug)]
pub struct Frame {
    pub header: FrameHeader,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// A connection.
pub struct Raw {
    pub stream: UnixStream,
    pub sequence: u64,
}

/// An open session, with its mapping of the region.
pub struct Client {
    pub raw: Raw,
    pub reply: HelloReply,
    pub region: Option<Region>,
    /// The pool's block table, if it was asked for and came.
    pub table: Option<TableReader>,
}

impl Raw {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("it connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, sequence: 0 }
    }

    pub fn bytes<T: Serialize>(kind: Kind, flags: FrameFlags, sequence: u64, message: Option<&T>) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(message) = message {
            encode(message, &mut body).expect("it encodes");
        }
        let body_bytes = u32::try_from(body.len()).expect("a small body");
        let mut bytes = FrameHeader { kind, flags, body_bytes, sequence, descriptors: 0 }.to_bytes().to_vec();
        bytes.extend(body);
        bytes
    }

    pub fn send<T: Serialize>(&mut self, kind: Kind, flags: FrameFlags, message: Option<&T>) -> u64 {
        self.sequence += 1;
        let bytes = Self::bytes(kind, flags, self.sequence, message);
        self.stream.write_all(&bytes).expect("it is written");
        self.sequence
    }

    /// Sends with descriptors, `announced` of them in the header.
    pub fn send_with(&mut self, kind: Kind, message: &impl Serialize, fds: &[BorrowedFd<'_>], announced: u16) {
        self.sequence += 1;
        let mut bytes = Self::bytes(kind, FrameFlags::REQUEST, self.sequence, Some(message));
        bytes[24..26].copy_from_slice(&announced.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent.expect("it is sent"), bytes.len());
    }

    /// The next frame; `None` at the end of the connection.
    pub fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; HEADER_BYTES];
        let mut descriptors = Vec::new();
        let mut have = 0;
        while have < HEADER_BYTES {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [IoSliceMut::new(&mut head[have..])];
            let got = match recvmsg(&self.stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes > 0 => got.bytes,
                Ok(_) | Err(rustix::io::Errno::CONNRESET) => return None,
                Err(errno) => panic!("nothing came: {errno}"),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    descriptors.extend(fds);
                }
            }
            have += got;
        }
        let header = FrameHeader::from_bytes(&head, u32::MAX).expect("a header");
        let mut body = vec![0; header.body_bytes as usize];
        self.stream.read_exact(&mut body).expect("a body");
        Some(Frame { header, body, descriptors })
    }

    /// The code of the refusal that comes next.
    pub fn refusal(&mut self) -> ErrorCode {
        let frame = self.receive().expect("a refusal and no end");
        assert_eq!(frame.header.flags, FrameFlags::ERROR, "{:?}", frame.header);
        let error: ErrorReply = decode("ErrorReply", &frame.body).expect("a refusal");
        assert!(!error.message.is_empty());
        ErrorCode::from_number(error.code)
    }

    /// Whether the other side has closed, after whatever frames still come.
    pub fn ends(&mut self) -> bool {
        while self.receive().is_some() {}
        true
    }
}

impl Client {
    pub fn open(socket: &Path, hello: &Hello) -> Self {
        Self::try_open(socket, hello).unwrap_or_else(|code| panic!("refused: {code:?}"))
    }

    pub fn try_open(socket: &Path, hello: &Hello) -> Result<Self, ErrorCode> {
        let mut raw = Raw::connect(socket);
        raw.send(Kind::Hello, FrameFlags::REQUEST, Some(hello));
        Self::opened(raw)
    }

    /// A session of role "tier" with this file as its region.
    pub fn tier(socket: &Path, engine: &str, rows: u32, file: impl AsFd) -> Result<Self, ErrorCode> {
        let foreign = Some(ForeignRegion { rows, row_stride: BLOCK_BYTES, offset_bytes: 0 });
        let mut raw = Raw::connect(socket);
        raw.send_with(Kind::Hello, &Hello { foreign, ..hello("tier", engine) }, &[file.as_fd()], 1);
        Self::opened(raw)
    }

    fn opened(mut raw: Raw) -> Result<Self, ErrorCode> {
        let frame = raw.receive().expect("an answer to Hello");
        if frame.header.flags.error {
            let error: ErrorReply = decode("ErrorReply", &frame.body).expect("a refusal");
            return Err(ErrorCode::from_number(error.code));
        }
        let reply: HelloReply = decode("HelloReply", &frame.body).expect("a reply");
        assert_eq!(usize::from(frame.header.descriptors), frame.descriptors.len());
        let mut descriptors = frame.descriptors.into_iter();
        let region = descriptors
            .next()
            .map(|fd| Region::from_fd(fd, reply.slots, reply.slot_stride, BLOCK_BYTES).expect("the daemon's region"));
        let table =
            descriptors.next().map(|fd| TableReader::open(&fd, reply.slots, KEY_BYTES).expect("the daemon's table"));
        Ok(Self { raw, reply, region, table })
    }

    pub fn ask<T: Serialize, R: DeserializeOwned>(&mut self, kind: Kind, message: &T) -> Result<R, ErrorCode> {
        let sequence = self.raw.send(kind, FrameFlags::REQUEST, Some(message));
        let frame = self.raw.receive().expect("a reply");
        assert_eq!((frame.header.sequence, frame.header.kind), (sequence, kind));
        if frame.header.flags.error {
            let error: ErrorReply = decode("ErrorReply", &frame.body).expect("a refusal");
            return Err(ErrorCode::from_number(error.code));
        }
        Ok(decode("reply", &frame.body).expect("a reply of its kind"))
    }

    /// A round trip without a body: what was sent one way before it is served then.
    pub fn ping(&mut self) {
        let sequence = self.raw.send::<()>(Kind::Ping, FrameFlags::REQUEST, None);
        let frame = self.raw.receive().expect("a pong");
        assert_eq!((frame.header.sequence, frame.header.flags), (sequence, FrameFlags::REPLY));
    }

    pub fn lookup(&mut self, request: u64, scan: Scan, keys: Vec<u8>) -> LookupReply {
        let queries = vec![Query { scan: scan as u8, keys }];
        self.ask(Kind::Lookup, &Lookup { request, tiers: u32::MAX, lease: true, queries }).expect("an answer")
    }

    /// The answers to `keys`, each alone, without a lease.
    pub fn answers(&mut self, range: impl IntoIterator<Item = u32>) -> Vec<Answer> {
        let queries = vec![Query { scan: Scan::Each as u8, keys: keys(range) }];
        let message = Lookup { request: 1 << 40, tiers: u32::MAX, lease: false, queries };
        let reply: LookupReply = self.ask(Kind::Lookup, &message).expect("an answer");
        assert_eq!(reply.lease, 0);
        answers(&reply)
    }

    pub fn prepare(&mut self, request: u64, job: u64, keys: Vec<u8>) -> PrepareStoreReply {
        self.ask(Kind::PrepareStore, &PrepareStore { request, job, allow_partial: true, keys }).expect("an answer")
    }

    pub fn end_step(&mut self, message: &EndStep) -> EndStepReply {
        self.ask(Kind::EndStep, message).expect("the step ends")
    }

    pub fn complete(&mut self, jobs: &[(u64, bool)]) {
        let jobs = jobs.iter().map(|(job, ok)| CompletedJob { job: *job, ok: *ok }).collect();
        self.raw.send(Kind::Complete, FrameFlags::ONE_WAY, Some(&Complete { jobs }));
    }

    pub fn bye(mut self) {
        self.raw.send::<()>(Kind::Bye, FrameFlags::ONE_WAY, None);
        assert!(self.raw.ends());
    }

    pub fn write(&self, slot: u32, n: u32) {
        assert!(self.region.as_ref().expect("a region").write_slot(SlotId(slot), &block(n)));
    }

    pub fn read(&self, slot: u32) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        assert!(self.region.as_ref().expect("a region").read_slot(SlotId(slot), &mut bytes));
        bytes
    }

    /// Waits until all slots can be stored to: the region is backed behind the session.
    pub fn await_slots(&mut self) {
        until("slots are ready", || value(&self.stats(), "terrace_primary_slots{state=\"unready\"}") == 0.0);
    }

    pub fn stats(&mut self) -> StatsReply {
        self.raw.send::<()>(Kind::Stats, FrameFlags::REQUEST, None);
        let frame = self.raw.receive().expect("statistics");
        decode("StatsReply", &frame.body).expect("statistics")
    }

    /// Stores blocks as a scheduler that copies by itself.
    pub fn store(&mut self, request: u64, job: u64, range: std::ops::Range<u32>) {
        let plan = self.prepare(request, job, keys(range.clone()));
        let all: Vec<u32> = range.collect();
        assert!(plan.room, "there is room");
        for (at, slot) in numbers(&plan.store).into_iter().zip(numbers(&plan.slots)) {
            self.write(slot, all[at as usize]);
        }
        let completed = vec![CompletedJob { job, ok: true }];
        let reply = self.end_step(&EndStep { completed, finished: vec![request], ..EndStep::default() });
        assert_eq!(reply.jobs, [JobOutcome { job, ok: true }]);
    }
}

pub fn value(stats: &StatsReply, name: &str) -> f64 {
    stats.values.iter().find(|(found, _)| found == name).map_or(f64::NAN, |(_, value)| *value)
}

pub fn answers(reply: &LookupReply) -> Vec<Answer> {
    reply.answers.iter().map(|byte| Answer::from_byte(*byte).expect("an answer")).collect()
}

pub fn hit() -> Answer {
    Answer::Hit { origin: 0 }
}
