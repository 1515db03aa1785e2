//! A daemon of a few lines that says what the test wants, and notes what it was told.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use terrace_config::{Choice, Geometry, Namespace};
use terrace_connector::client::{ClientOptions, RemoteManager, SessionState};
use terrace_connector::protocol::{
    Answer, EndStep, EndStepReply, FrameFlags, FrameHeader, HEADER_BYTES, HelloReply, Kind, Lookup, LookupReply,
    PrepareStore, PrepareStoreReply, StatsReply, VERSION, WireLimits, decode, encode, keys_from_bytes,
    numbers_to_bytes,
};
use terrace_connector::{ManagerPort, PortQuery, RequestId};
use terrace_primary::{Key, Region, RegionOptions};
use terrace_tiering::{RequestContext, TierFilter};

pub const SLOTS: u32 = 64;
pub const HASH_BYTES: u8 = 8;

/// What the daemon was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Lookup(Lookup),
    PrepareStore(PrepareStore),
    EndStep(EndStep),
    Other(Kind),
}

/// What it says of a key.
pub type Says = Arc<Mutex<Box<dyn FnMut(&Key) -> Answer + Send>>>;

/// How it behaves; to be changed at any time.
#[derive(Default)]
pub struct Manners {
    /// Reads and answers nothing.
    pub asleep: AtomicBool,
    /// Closes the connection when the next frame comes.
    pub hang_up: AtomicBool,
    /// Answers of this kind are replaced by these bytes.
    pub lies: Mutex<Option<(Kind, Vec<u8>)>>,
    /// What the next `EndStep` is answered with.
    pub end_step: Mutex<Option<EndStepReply>>,
    /// Its region can be cut off.
    pub unsealed: AtomicBool,
    stop: AtomicBool,
}

pub struct FakeDaemon {
    pub place: tempfile::TempDir,
    pub manners: Arc<Manners>,
    pub told: Arc<Mutex<Vec<Told>>>,
    pub says: Says,
    thread: Option<JoinHandle<()>>,
}

pub fn geometry() -> Geometry {
    Geometry { block_bytes: 4096, tokens_per_block: 16, blocks_per_chunk: 1, groups: 2, hash_bytes: HASH_BYTES }
}

pub fn key(number: u64, group: u32) -> Key {
    Key::new(&number.to_be_bytes(), group).expect("a short hash")
}

pub fn keys(numbers: std::ops::Range<u64>, group: u32) -> Vec<Key> {
    numbers.map(|number| key(number, group)).collect()
}

pub fn prefix(keys: &[Key]) -> PortQuery {
    PortQuery { prefix_only: true, keys: keys.to_vec() }
}

pub fn each(keys: &[Key]) -> PortQuery {
    PortQuery { prefix_only: false, keys: keys.to_vec() }
}

/// Waits until `condition`, ten seconds at most.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

impl FakeDaemon {
    /// A daemon that does not listen yet.
    pub fn new() -> Self {
        let says: Box<dyn FnMut(&Key) -> Answer + Send> = Box::new(|_| Answer::Miss);
        Self {
            place: tempfile::tempdir().expect("temporary directory"),
            manners: Arc::default(),
            told: Arc::default(),
            says: Arc::new(Mutex::new(says)),
            thread: None,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.place.path().join("daemon.sock")
    }

    /// Begins to listen.
    pub fn start(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).expect("a socket");
        listener.set_nonblocking(true).expect("non-blocking");
        let (manners, told, says) = (Arc::clone(&self.manners), Arc::clone(&self.told), Arc::clone(&self.says));
        self.thread = Some(thread::spawn(move || {
            while !manners.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let _ = serve(stream, &manners, &told, &says);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        }));
    }

    pub fn say(&self, says: impl FnMut(&Key) -> Answer + Send + 'static) {
        *self.says.lock().unwrap() = Box::new(says);
    }

    pub fn lie(&self, kind: Kind, bytes: Vec<u8>) {
        *self.manners.lies.lock().unwrap() = Some((kind, bytes));
    }

    pub fn sleep(&self, asleep: bool) {
        self.manners.asleep.store(asleep, Ordering::SeqCst);
    }

    pub fn hang_up(&self) {
        self.manners.hang_up.store(true, Ordering::SeqCst);
    }

    pub fn take_told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    pub fn lookups(&self) -> usize {
        self.told.lock().unwrap().iter().filter(|told| matches!(told, Told::Lookup(_))).count()
    }

    /// The ends of steps since the last look.
    pub fn steps(&self) -> Vec<EndStep> {
        let is_step = |told| if let Told::EndStep(step) = told { Some(step) } else { None };
        self.take_told().into_iter().filter_map(is_step).collect()
    }

    pub fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(self.socket(), Namespace::default(), geometry());
        // Far from what an answer takes here, also on a busy machine: a timeout in a test is one that was meant.
        options.call_budget = Duration::from_millis(500);
        options.stall_patience = Duration::from_millis(200);
        options
    }

    /// A manager that is connected, with request 1 open.
    pub fn manager(&self) -> RemoteManager {
        self.manager_with(self.options())
    }

    pub fn manager_with(&self, options: ClientOptions) -> RemoteManager {
        let mut manager = RemoteManager::start(options).expect("a thread");
        manager.session_mut().wait_ready(Duration::from_secs(10)).expect("a connection");
        manager.begin_request(context(1)).expect("a new request");
        assert_eq!(manager.session().state(), SessionState::Ready);
        manager
    }
}

pub fn context(id: u64) -> RequestContext {
    RequestContext { id: RequestId(id), tiers: TierFilter::ALL }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.manners.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: UnixStream, manners: &Manners, told: &Mutex<Vec<Told>>, says: &Says) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_millis(2)))?;
    let mut input = VecDeque::new();
    loop {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => input.extend(&bytes[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        if manners.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        while !manners.asleep.load(Ordering::SeqCst) {
            let all = input.make_contiguous();
            let Some((header, rest)) = all.split_first_chunk::<HEADER_BYTES>() else { break };
            let header = FrameHeader::from_bytes(header, 1 << 20).expect("a valid header");
            let Some(body) = rest.get(..header.body_bytes as usize) else { break };
            if manners.hang_up.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            let reply = answer(header, body, manners, told, says);
            let used = HEADER_BYTES + body.len();
            input.drain(..used);
            if header.flags.one_way {
                continue;
            }
            let body = match &*manners.lies.lock().unwrap() {
                Some((kind, lie)) if *kind == header.kind => lie.clone(),
                _ => reply,
            };
            send(&mut stream, header, &body, manners)?;
        }
    }
}

fn send(stream: &mut UnixStream, request: FrameHeader, body: &[u8], manners: &Manners) -> io::Result<()> {
    let region = (request.kind == Kind::Hello).then(|| region(manners.unsealed.load(Ordering::SeqCst)));
    let header = FrameHeader {
        flags: FrameFlags::REPLY,
        body_bytes: body.len() as u32,
        descriptors: u16::from(region.is_some()),
        ..request
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(body);
    let Some(region) = region else { return stream.write_all(&bytes) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: [BorrowedFd<'_>; 1] = [region.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(&*stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}

fn region(unsealed: bool) -> OwnedFd {
    if unsealed {
        let file = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, u64::from(SLOTS) * 4096).expect("room");
        return file;
    }
    let options = RegionOptions {
        slots: SLOTS,
        slot_stride: 4096,
        block_bytes: 4096,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    let region = Region::create(&options, &|_, _| {}).expect("a region");
    region.fd().expect("a file").try_clone_to_owned().expect("a descriptor")
}

fn answer(header: FrameHeader, body: &[u8], manners: &Manners, told: &Mutex<Vec<Told>>, says: &Says) -> Vec<u8> {
    let mut reply = Vec::new();
    let note = |message: Told| told.lock().unwrap().push(message);
    match header.kind {
        Kind::Hello => encode(&hello_reply(), &mut reply).unwrap(),
        Kind::Lookup => {
            let lookup: Lookup = decode("Lookup", body).unwrap();
            encode(&located(&lookup, header.sequence, says), &mut reply).unwrap();
            note(Told::Lookup(lookup));
        }
        Kind::PrepareStore => {
            let store: PrepareStore = decode("PrepareStore", body).unwrap();
            let keys = store.keys.len() / (usize::from(HASH_BYTES) + 4);
            let numbers = numbers_to_bytes(0..keys as u32);
            let plan = PrepareStoreReply { room: true, store: numbers.clone(), slots: numbers };
            encode(&plan, &mut reply).unwrap();
            note(Told::PrepareStore(store));
        }
        Kind::EndStep => {
            let said = manners.end_step.lock().unwrap().take().unwrap_or_default();
            encode(&said, &mut reply).unwrap();
            note(Told::EndStep(decode("EndStep", body).unwrap()));
        }
        Kind::Stats => encode(&StatsReply { values: vec![("terrace_x".to_owned(), 2.0)] }, &mut reply).unwrap(),
        kind => note(Told::Other(kind)),
    }
    reply
}

pub fn hello_reply() -> HelloReply {
    HelloReply {
        version: VERSION,
        features: Vec::new(),
        session: 1,
        region: 7,
        namespace: Namespace::default().digest(&geometry()).to_vec(),
        slots: SLOTS,
        slot_stride: 4096,
        region_bytes: u64::from(SLOTS) * 4096,
        tiers: Vec::new(),
        limits: WireLimits { message_bytes: 1 << 20, keys_per_message: 1000, requests: 100, jobs: 100, slots: SLOTS },
    }
}

/// Answers each key as `says` does; the `n`th hit lies in slot `n`.
fn located(lookup: &Lookup, sequence: u64, says: &Says) -> LookupReply {
    let (mut answers, mut hits) = (Vec::new(), 0);
    for query in &lookup.queries {
        let mut keys = Vec::new();
        keys_from_bytes(&query.keys, usize::from(HASH_BYTES) + 4, &mut keys).unwrap();
        for key in keys {
            let answer = says.lock().unwrap()(&key);
            hits += u32::from(matches!(answer, Answer::Hit { .. }));
            answers.push(answer.to_byte());
            if query.scan == 0 && answer == Answer::Miss {
                break;
            }
        }
    }
    let found = answers.iter().any(|answer| *answer != Answer::Miss.to_byte());
    LookupReply { lease: if found { sequence } else { 0 }, answers, slots: numbers_to_bytes(0..hits) }
}
