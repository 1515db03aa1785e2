//! The frames of `tests/protocol/vectors.json`: every message, with ordinary values and at the edges of its fields.

use terrace_connector::protocol::{
    Answer, Attach, AttachReply, Complete, CompletedJob, Copied, CopiedJob, Copy, CopyJob, DEVICE_COPIES, EndStep,
    EndStepReply, ErrorCode, ErrorReply, EventBatch, ForeignRegion, FrameFlags, FrameHeader, Goodbye, Hello,
    HelloReply, JobOutcome, Kind, Lease, LeaseEnd, LeaseReply, LoadRows, Lookup, LookupReply, Memory, Page, Pin,
    PinReply, PrepareStore, PrepareStoreReply, Query, Refusal, RowsDone, Scan, StatsReply, StoreRows, TierInfo, Unpin,
    WANT_EVENTS, WANT_STATS, WireGeometry, WireLimits, WireNamespace, numbers_to_bytes,
};

use super::frames::Message;

/// One frame and what it means.
pub struct Case {
    pub name: String,
    pub header: FrameHeader,
    pub message: Message,
}

struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, name: &str, kind: Kind, flags: FrameFlags, sequence: u64, message: Message) {
        self.with_descriptors(name, kind, flags, sequence, 0, message);
    }

    fn with_descriptors(
        &mut self,
        name: &str,
        kind: Kind,
        flags: FrameFlags,
        sequence: u64,
        descriptors: u16,
        message: Message,
    ) {
        let header = FrameHeader { kind, flags, body_bytes: 0, sequence, descriptors };
        self.0.push(Case { name: name.into(), header, message });
    }
}

const REQUEST: FrameFlags = FrameFlags::REQUEST;
const REPLY: FrameFlags = FrameFlags::REPLY;
const ONE_WAY: FrameFlags = FrameFlags::ONE_WAY;

/// All of them, in the order of the page.
pub fn cases() -> Vec<Case> {
    let mut cases = Cases(Vec::new());
    hello(&mut cases);
    hello_reply(&mut cases);
    lookup(&mut cases);
    store(&mut cases);
    end_step(&mut cases);
    end_step_reply(&mut cases);
    small(&mut cases);
    rows(&mut cases);
    errors(&mut cases);
    device_copies(&mut cases);
    cases.0
}

/// Keys with hashes of 32 bytes, in group 0: each byte of the hash of key `n` is `n`.
fn keys(range: std::ops::Range<u8>) -> Vec<u8> {
    range.flat_map(|n| [[n; 32].as_slice(), &[0; 4]].concat()).collect()
}

fn namespace() -> WireNamespace {
    WireNamespace {
        model: "meta-llama/Llama-3.1-8B-Instruct".into(),
        revision: "0e9e39f".into(),
        dtype: "bfloat16".into(),
        kv_layout: "NHD".into(),
        quantisation: String::new(),
        rope: "default theta=500000".into(),
        parallel: "canonical".into(),
        engine: "vllm 0.32.0".into(),
        tenant: String::new(),
    }
}

const GEOMETRY: WireGeometry =
    WireGeometry { block_bytes: 2 << 20, tokens_per_block: 16, blocks_per_chunk: 1, groups: 1, hash_bytes: 32 };

fn a_hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: Vec::new(),
        role: "scheduler".into(),
        engine: "engine-0".into(),
        rank: 0,
        store_workers: 1,
        load_workers: 1,
        namespace: namespace(),
        geometry: GEOMETRY,
        foreign: None,
        client: "terrace-kv 0.1.0".into(),
    }
}

fn hello(cases: &mut Cases) {
    cases.add("hello of a scheduler", Kind::Hello, REQUEST, 1, Message::Hello(a_hello()));
    let worker = Hello { role: "worker".into(), rank: 3, store_workers: 0, load_workers: 0, ..a_hello() };
    cases.add("hello of a worker", Kind::Hello, REQUEST, 1, Message::Hello(worker));
    let tier = Hello {
        role: "tier".into(),
        store_workers: 0,
        load_workers: 0,
        foreign: Some(ForeignRegion { rows: 4096, row_stride: 2 << 20, offset_bytes: 4096 }),
        ..a_hello()
    };
    cases.with_descriptors("hello of a tier with its region", Kind::Hello, REQUEST, 1, 1, Message::Hello(tier));
    let longest = Hello {
        version_min: 0,
        version_max: u16::MAX,
        features: vec![String::new(), "späte Ernte 🍇".into(), "x".repeat(300)],
        role: "scheduler".into(),
        engine: "エンジン\u{0}\"\\\n".into(),
        rank: u32::MAX,
        store_workers: u32::MAX,
        load_workers: u32::MAX,
        namespace: WireNamespace { model: "/ models/ünïcode 模型".into(), tenant: "t".repeat(40), ..namespace() },
        geometry: WireGeometry {
            block_bytes: u32::MAX,
            tokens_per_block: u32::MAX,
            blocks_per_chunk: u32::MAX,
            groups: u32::MAX,
            hash_bytes: u8::MAX,
        },
        foreign: Some(ForeignRegion { rows: u32::MAX, row_stride: u32::MAX, offset_bytes: u64::MAX }),
        client: "é".repeat(150),
    };
    cases.add(
        "hello with the longest numbers and other scripts",
        Kind::Hello,
        REQUEST,
        u64::MAX,
        Message::Hello(longest),
    );
    let empty = Hello {
        version_min: 0,
        version_max: 0,
        role: String::new(),
        engine: String::new(),
        store_workers: 0,
        load_workers: 0,
        namespace: WireNamespace::default(),
        geometry: WireGeometry { block_bytes: 0, tokens_per_block: 0, blocks_per_chunk: 0, groups: 0, hash_bytes: 0 },
        client: String::new(),
        ..a_hello()
    };
    cases.add("hello in which all is empty or 0", Kind::Hello, REQUEST, 0, Message::Hello(empty));
}

fn hello_reply(cases: &mut Cases) {
    let limits =
        WireLimits { message_bytes: 1 << 20, keys_per_message: 16384, requests: 4096, jobs: 1024, slots: 24576 };
    let tier = |name: &str, medium, locality| TierInfo { name: name.into(), medium, locality };
    let reply = HelloReply {
        version: 1,
        features: Vec::new(),
        session: 7,
        region: 0x1234_5678_9abc_def0,
        namespace: (0..32).collect(),
        slots: 32768,
        slot_stride: 2 << 20,
        region_bytes: 64 << 30,
        tiers: vec![tier("nvme", 1, 0), tier("bucket", 1, 1)],
        limits,
    };
    let message = Message::HelloReply(reply.clone());
    cases.with_descriptors("reply to hello with the region", Kind::Hello, REPLY, 1, 1, message);
    let message = Message::HelloReply(HelloReply { features: vec!["shared-table".into()], ..reply.clone() });
    cases.with_descriptors("reply to hello with region and table", Kind::Hello, REPLY, 1, 2, message);
    let message = Message::HelloReply(HelloReply { tiers: Vec::new(), ..reply.clone() });
    cases.add("reply to the hello of a tier, no tiers below", Kind::Hello, REPLY, 1, message);
    let longest = HelloReply {
        version: u16::MAX,
        features: vec!["a".into(); 16],
        session: u64::MAX,
        region: u64::MAX,
        slots: u32::MAX,
        slot_stride: u32::MAX,
        region_bytes: u64::MAX,
        tiers: (0..16).map(|n| tier(&format!("tier-{n}"), n % 2, n / 8)).collect(),
        limits: WireLimits {
            message_bytes: u32::MAX,
            keys_per_message: u32::MAX,
            requests: u32::MAX,
            jobs: u32::MAX,
            slots: u32::MAX,
        },
        ..reply
    };
    let message = Message::HelloReply(longest);
    cases.with_descriptors("reply to hello with the longest numbers", Kind::Hello, REPLY, u64::MAX, 1, message);
}

fn lookup(cases: &mut Cases) {
    let query = |scan: Scan, keys| Query { scan: scan as u8, keys };
    let one = Lookup { request: 1, tiers: u32::MAX, lease: true, queries: vec![query(Scan::Prefix, keys(0..4))] };
    cases.add("lookup of a prefix", Kind::Lookup, REQUEST, 2, Message::Lookup(one));
    let groups = Lookup {
        request: u64::MAX,
        tiers: 0b10,
        lease: false,
        queries: vec![query(Scan::Prefix, keys(0..2)), query(Scan::Each, keys(7..8)), query(Scan::Each, Vec::new())],
    };
    cases.add("lookup of three groups, one of them empty", Kind::Lookup, REQUEST, 3, Message::Lookup(groups));
    let none = Lookup { request: 0, tiers: 0, lease: true, queries: Vec::new() };
    cases.add("lookup of nothing", Kind::Lookup, REQUEST, 4, Message::Lookup(none));
    // Byte strings of more than 255 bytes and of more than 65,535 have longer headers, lists of more than 15 too.
    let long = Lookup { request: 1 << 33, tiers: 1, lease: true, queries: vec![query(Scan::Each, keys(0..20)); 16] };
    cases.add("lookup of 16 groups", Kind::Lookup, REQUEST, 255, Message::Lookup(long));
    let wide = Lookup { request: 65536, tiers: 65536, lease: true, queries: vec![query(Scan::Each, vec![9; 65536])] };
    cases.add("lookup with a byte string of 64 KiB", Kind::Lookup, REQUEST, 256, Message::Lookup(wide));

    let answers = [
        Answer::Hit { origin: 0 },
        Answer::Hit { origin: 2 },
        Answer::Pending,
        Answer::Found { tier: 1 },
        Answer::Retry,
        Answer::Miss,
    ];
    let reply = LookupReply {
        lease: 2,
        answers: answers.map(Answer::to_byte).to_vec(),
        slots: numbers_to_bytes([0, u32::MAX]),
    };
    cases.add("reply to a lookup, each answer once", Kind::Lookup, REPLY, 2, Message::LookupReply(reply));
    let every: Vec<u8> = (0..=u8::MAX).filter(|byte| Answer::from_byte(*byte).is_some()).collect();
    let hits = every.iter().filter(|byte| **byte & 7 == 1).count() as u32;
    let reply = LookupReply { lease: u64::MAX, answers: every, slots: numbers_to_bytes(0..hits) };
    cases.add("reply to a lookup, every byte that is an answer", Kind::Lookup, REPLY, 3, Message::LookupReply(reply));
    let nothing = Message::LookupReply(LookupReply::default());
    cases.add("reply to a lookup of nothing", Kind::Lookup, REPLY, 4, nothing);
    let lease = Lease { request: 1, tiers: u32::MAX, seen: 70_000, slots: numbers_to_bytes(7..11) };
    cases.add("lease of four blocks", Kind::Lease, REQUEST, 5, Message::Lease(lease));
    let slots = numbers_to_bytes((0..300).map(|slot| u32::MAX - slot));
    let lease = Lease { request: u64::MAX, tiers: 0, seen: u64::MAX, slots };
    cases.add("lease with the longest numbers", Kind::Lease, REQUEST, 6, Message::Lease(lease));
    cases.add("lease of nothing", Kind::Lease, REQUEST, 0, Message::Lease(Lease::default()));
    cases.add("reply to a lease", Kind::Lease, REPLY, 5, Message::LeaseReply(LeaseReply { lease: 5 }));
    cases.add("no lease", Kind::Lease, REPLY, 6, Message::LeaseReply(LeaseReply::default()));
}

fn store(cases: &mut Cases) {
    let store = PrepareStore { request: 1, job: 10, allow_partial: true, keys: keys(0..3) };
    cases.add("prepare a store", Kind::PrepareStore, REQUEST, 5, Message::PrepareStore(store));
    let edge = PrepareStore { request: u64::MAX, job: u64::MAX, allow_partial: false, keys: Vec::new() };
    cases.add("prepare a store of nothing", Kind::PrepareStore, REQUEST, 6, Message::PrepareStore(edge));
    let reply =
        PrepareStoreReply { room: true, store: numbers_to_bytes([0, 2]), slots: numbers_to_bytes([17, 4_000_000]) };
    cases.add("slots for two of three keys", Kind::PrepareStore, REPLY, 5, Message::PrepareStoreReply(reply));
    let present = Message::PrepareStoreReply(PrepareStoreReply { room: true, ..PrepareStoreReply::default() });
    cases.add("all of it is there already", Kind::PrepareStore, REPLY, 6, present);
    let full = Message::PrepareStoreReply(PrepareStoreReply::default());
    cases.add("no room", Kind::PrepareStore, REPLY, 7, full);
}

fn end_step(cases: &mut Cases) {
    let none = Message::EndStep(EndStep::default());
    cases.add("end of a step in which nothing happened", Kind::EndStep, REQUEST, 8, none);
    let step = EndStep {
        leases: vec![
            LeaseEnd { lease: 2, job: 11, load: numbers_to_bytes(0..2), wait: Vec::new() },
            LeaseEnd { lease: 3, job: 0, load: Vec::new(), wait: numbers_to_bytes([0, 2, 3]) },
        ],
        completed: vec![CompletedJob { job: 9, ok: true }, CompletedJob { job: 10, ok: false }],
        finished: vec![0, 1, u64::from(u32::MAX) + 1, u64::MAX],
        touched: keys(0..2),
        want: WANT_EVENTS | WANT_STATS,
    };
    cases.add("end of a step with everything", Kind::EndStep, REQUEST, 9, Message::EndStep(step));
    let edge = EndStep {
        leases: vec![LeaseEnd { lease: u64::MAX, job: u64::MAX, load: Vec::new(), wait: Vec::new() }],
        completed: (0..17).map(|n| CompletedJob { job: 1 << (3 * n), ok: n % 2 == 0 }).collect(),
        finished: (0..70_000).step_by(700).collect(),
        touched: Vec::new(),
        want: u32::MAX,
    };
    cases.add("end of a step with long lists", Kind::EndStep, REQUEST, 10, Message::EndStep(edge));
}

fn end_step_reply(cases: &mut Cases) {
    let none = Message::EndStepReply(EndStepReply { workers: 2, ..EndStepReply::default() });
    cases.add("reply to the end of a quiet step", Kind::EndStep, REPLY, 8, none);
    let reply = EndStepReply {
        refused: vec![Refusal { lease: 3, keys: numbers_to_bytes([2, 3]) }],
        workers: 1,
        rows: vec![RowsDone { job: 12, ok: vec![1, 0, 1], micros: 350 }],
        events: vec![
            EventBatch { what: 0, medium: 0, locality: 0, keys: keys(0..2) },
            EventBatch { what: 1, medium: 1, locality: 1, keys: keys(2..3) },
            EventBatch { what: 2, medium: 0, locality: 0, keys: Vec::new() },
        ],
        events_lost: 3,
        stats: vec![("terrace_hits_total".into(), 12.0), ("terrace_tier_load_seconds{tier=\"nvme\"}".into(), 0.25)],
        jobs: vec![JobOutcome { job: 9, ok: true }, JobOutcome { job: 11, ok: false }],
    };
    cases.add("reply to the end of a step with everything", Kind::EndStep, REPLY, 9, Message::EndStepReply(reply));
    let edge = EndStepReply {
        refused: vec![Refusal { lease: u64::MAX, keys: Vec::new() }],
        workers: u32::MAX,
        rows: vec![RowsDone { job: u64::MAX, ok: Vec::new(), micros: u64::MAX }],
        events: Vec::new(),
        events_lost: u64::MAX,
        stats: vec![
            (String::new(), f64::MAX),
            ("smallest".into(), 5e-324),
            ("below 0".into(), -0.5),
            ("not a float in 32 bits".into(), 0.1),
        ],
        jobs: vec![JobOutcome { job: u64::MAX, ok: true }],
    };
    cases.add("reply to the end of a step, edges", Kind::EndStep, REPLY, 10, Message::EndStepReply(edge));
}

fn small(cases: &mut Cases) {
    let jobs = vec![CompletedJob { job: 10, ok: true }, CompletedJob { job: u64::MAX, ok: false }];
    cases.add("jobs are complete", Kind::Complete, ONE_WAY, 11, Message::Complete(Complete { jobs }));
    cases.add("no job is complete", Kind::Complete, ONE_WAY, 12, Message::Complete(Complete::default()));
    cases.add("ping", Kind::Ping, REQUEST, 13, Message::Empty);
    cases.add("reply to ping", Kind::Ping, REPLY, 13, Message::Empty);
    cases.add("reset", Kind::Reset, REQUEST, 14, Message::Empty);
    cases.add("reply to reset", Kind::Reset, REPLY, 14, Message::Empty);
    let pin = Pin { request: 1, ttl_ms: 60_000, keys: keys(0..2) };
    cases.add("pin", Kind::Pin, REQUEST, 15, Message::Pin(pin));
    cases.add("reply to pin", Kind::Pin, REPLY, 15, Message::PinReply(PinReply { pinned: 2 }));
    let edge = Pin { request: u64::MAX, ttl_ms: u32::MAX, keys: Vec::new() };
    cases.add("pin for the longest time", Kind::Pin, REQUEST, 16, Message::Pin(edge));
    cases.add("reply to pin, most", Kind::Pin, REPLY, 16, Message::PinReply(PinReply { pinned: u32::MAX }));
    cases.add("unpin", Kind::Unpin, REQUEST, 17, Message::Unpin(Unpin { request: 1, keys: keys(0..1) }));
    cases.add("reply to unpin", Kind::Unpin, REPLY, 17, Message::Empty);
    cases.add("ask for statistics", Kind::Stats, REQUEST, 18, Message::Empty);
    let values = vec![("terrace_slots".into(), 32768.0), ("terrace_hit_ratio".into(), 0.875)];
    cases.add("statistics", Kind::Stats, REPLY, 18, Message::StatsReply(StatsReply { values }));
    cases.add("no statistics", Kind::Stats, REPLY, 19, Message::StatsReply(StatsReply::default()));
    cases.add("bye", Kind::Bye, ONE_WAY, 20, Message::Empty);
    let goodbye = Goodbye { reason: "the server is closing".into() };
    cases.add("goodbye", Kind::Goodbye, ONE_WAY, 0, Message::Goodbye(goodbye));
}

fn rows(cases: &mut Cases) {
    let store = StoreRows { request: 4, job: 12, keys: keys(0..3), rows: numbers_to_bytes([5, 0, 4095]) };
    cases.add("store rows", Kind::StoreRows, ONE_WAY, 21, Message::StoreRows(store));
    let load = LoadRows { request: 4, job: 13, keys: keys(0..2), rows: numbers_to_bytes([1, u32::MAX]) };
    cases.add("load rows", Kind::LoadRows, ONE_WAY, 22, Message::LoadRows(load));
    let none = StoreRows { request: u64::MAX, job: u64::MAX, keys: Vec::new(), rows: Vec::new() };
    cases.add("store no rows", Kind::StoreRows, ONE_WAY, 23, Message::StoreRows(none));
    let none = LoadRows { request: 0, job: 0, keys: Vec::new(), rows: Vec::new() };
    cases.add("load no rows", Kind::LoadRows, ONE_WAY, 24, Message::LoadRows(none));
}

fn errors(cases: &mut Cases) {
    let codes = [
        (ErrorCode::Malformed, Kind::Lookup, "the body is not a valid Lookup: 3 bytes follow it"),
        (ErrorCode::Version, Kind::Hello, "no common version: the client speaks 2 to 3, this server 1"),
        (ErrorCode::NotAdmitted, Kind::Hello, "user 1001 is not admitted: add it to server.allow_users"),
        (ErrorCode::Role, Kind::PrepareStore, "a worker stores nothing: its scheduler does"),
        (ErrorCode::Limit, Kind::Lookup, "20000 keys in one message, at most 16384 are taken: split it"),
        (ErrorCode::Unknown, Kind::Complete, "job 77 is not running"),
        (ErrorCode::Retry, Kind::PrepareStore, "not now"),
        (ErrorCode::Closing, Kind::StoreRows, "the server is closing"),
        (ErrorCode::Invalid, Kind::Hello, "geometry.hash_bytes is 0, it must be 1 to 64 — ungültig"),
        (ErrorCode::Internal, Kind::Stats, ""),
    ];
    for (code, kind, message) in codes {
        let name = format!("refused: {code:?}");
        let message = Message::ErrorReply(ErrorReply::new(code, message));
        cases.add(&name, kind, FrameFlags::ERROR, 30 + code as u64, message);
    }
    let unknown = Message::ErrorReply(ErrorReply { code: u16::MAX, message: "a code of a later release".into() });
    cases.add("refused with a code that nobody knows yet", Kind::Ping, FrameFlags::ERROR, 50, unknown);
}

fn device_copies(cases: &mut Cases) {
    let features = vec!["something-else".into(), DEVICE_COPIES.into()];
    let hello = Hello { features, role: "worker".into(), rank: 1, store_workers: 0, load_workers: 0, ..a_hello() };
    cases.add("hello of a worker that would have the daemon copy", Kind::Hello, REQUEST, 1, Message::Hello(hello));
    let reply = HelloReply {
        version: 1,
        features: vec![DEVICE_COPIES.into()],
        session: 8,
        region: 2,
        namespace: vec![7; 32],
        slots: 16,
        slot_stride: 2 << 20,
        region_bytes: 32 << 20,
        tiers: Vec::new(),
        limits: WireLimits { message_bytes: 1 << 20, keys_per_message: 16384, requests: 4096, jobs: 1024, slots: 8 },
    };
    let reply = Message::HelloReply(reply);
    cases.with_descriptors("reply to hello: the daemon copies", Kind::Hello, REPLY, 1, 1, reply);

    let memory = |n: u8| Memory { handle: vec![n; 64], offset: 512, allocation_bytes: 64 << 20 };
    let page = |memory, offset| Page { memory, offset, num_blocks: 1024, page_bytes: 32768, page_stride: 65536 };
    let attach = Attach {
        device: (0..16).collect(),
        memories: vec![memory(1), memory(2)],
        groups: vec![vec![page(0, 0), page(0, 32768), page(1, 0)], vec![page(1, 1 << 26)]],
        part_offset: 1 << 20,
        part_bytes: 1 << 20,
        null_block: Some(0),
        store_ready: vec![3; 64],
        load_ready: vec![4; 64],
    };
    cases.add("attach two memories, two groups", Kind::Attach, REQUEST, 2, Message::Attach(attach));
    let last =
        Page { memory: u32::MAX, offset: u64::MAX, num_blocks: u32::MAX, page_bytes: u32::MAX, page_stride: u64::MAX };
    let edge = Attach {
        device: vec![255; 16],
        memories: vec![Memory { handle: vec![255; 64], offset: u64::MAX, allocation_bytes: u64::MAX }; 17],
        groups: vec![Vec::new(), vec![last; 16]],
        part_offset: u32::MAX,
        part_bytes: u32::MAX,
        null_block: Some(u32::MAX),
        store_ready: vec![255; 64],
        load_ready: vec![255; 64],
    };
    cases.add("attach with the longest numbers", Kind::Attach, REQUEST, u64::MAX, Message::Attach(edge));
    cases.add("attach nothing", Kind::Attach, REQUEST, 3, Message::Attach(Attach::default()));
    let reply = AttachReply { stored: vec![5; 64], loaded: vec![6; 64] };
    cases.add("reply to attach", Kind::Attach, REPLY, 2, Message::AttachReply(reply));
    cases.add("reply to attach without events", Kind::Attach, REPLY, 3, Message::AttachReply(AttachReply::default()));

    let job = CopyJob {
        job: 10,
        blocks: numbers_to_bytes([7, 8, 0, 9, 300]),
        sizes: numbers_to_bytes([4, 1]),
        firsts: numbers_to_bytes([2, 0]),
        slots: numbers_to_bytes([17, 4_000_000, 18]),
    };
    let store = Copy { store: true, jobs: vec![job.clone(), CopyJob { job: 12, ..job.clone() }] };
    cases.add("copy pages of two jobs to slots", Kind::Copy, ONE_WAY, 4, Message::Copy(store));
    let long = CopyJob { job: u64::MAX, blocks: numbers_to_bytes(0..70), slots: vec![255; 4], ..job };
    cases.add("copy a slot to pages", Kind::Copy, ONE_WAY, 5, Message::Copy(Copy { store: false, jobs: vec![long] }));
    cases.add("copy nothing", Kind::Copy, ONE_WAY, 6, Message::Copy(Copy::default()));
    let jobs = vec![
        CopiedJob { job: 10, ok: true, bytes: 10 << 20, micros: 350 },
        CopiedJob { job: 12, ok: false, bytes: 0, micros: 0 },
        CopiedJob { job: u64::MAX, ok: true, bytes: u64::MAX, micros: u64::MAX },
    ];
    cases.add("jobs were copied", Kind::Copied, ONE_WAY, 0, Message::Copied(Copied { jobs }));
    cases.add("nothing was copied", Kind::Copied, ONE_WAY, 0, Message::Copied(Copied::default()));
    let early = ErrorReply::new(ErrorCode::Role, "Copy before the reply to Attach: wait for it");
    cases.add("refused: a copy that came too early", Kind::Copy, FrameFlags::ERROR, 7, Message::ErrorReply(early));
    let gone = ErrorReply::new(ErrorCode::Invalid, "memories[0]: the handle cannot be opened");
    cases.add("refused: memory that is gone", Kind::Attach, FrameFlags::ERROR, 8, Message::ErrorReply(gone));
}
