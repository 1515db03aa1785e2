//! For tests in this crate: a pool that is driven by hand, with one session whose other end is here.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde::Serialize;
use terrace_config::Config;
use terrace_primary::Key;

use super::connection::Connection;
use super::hello::Greeting;
use super::parts::PoolParts;
use super::peer::Peer;
use super::pool::Pool;
use super::pools::{NewSession, OpenSessions};
use super::wake::Wake;
use crate::protocol::{
    ForeignRegion, FrameFlags, FrameHeader, Hello, Kind, WireGeometry, WireNamespace, encode, keys_to_bytes,
};

pub(super) const BLOCK_BYTES: u32 = 4096;
/// The session.
pub(super) const SESSION: u64 = 1;

/// Of a scheduler; of a tier, if it has a region.
pub(super) fn hello(foreign: Option<ForeignRegion>) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: Vec::new(),
        role: if foreign.is_some() { "tier" } else { "scheduler" }.to_owned(),
        engine: "e".to_owned(),
        rank: 0,
        store_workers: 0,
        load_workers: 0,
        namespace: WireNamespace::default(),
        geometry: WireGeometry {
            block_bytes: BLOCK_BYTES,
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: 1,
            hash_bytes: 16,
        },
        foreign,
        client: "test".to_owned(),
    }
}

/// A pool of 16 slots, all backed, with the session of `hello`, of a process whose end `pidfd` tells. What wakes its
/// thread, and the client's end of the session.
pub(super) fn pool(hello: Hello, descriptor: Option<OwnedFd>, pidfd: Option<OwnedFd>) -> (Pool, Wake, UnixStream) {
    let text = "[primary]\nblocks = 16\nhuge_pages = \"off\"\n[geometry]\nblock_bytes = \"4KiB\"\nhash_bytes = 16\n";
    let config = Config::parse(text, "test").expect("a good configuration");
    let greeting = Greeting::check(hello, &config, usize::from(descriptor.is_some())).expect("a good Hello");
    let wake = Wake::new().expect("an eventfd");
    let (config, open) = (greeting.pool.clone(), OpenSessions::default());
    let parts = PoolParts::open(&config).expect("memory, and no tiers");
    let mut pool = Pool::open(config, parts, greeting.digest, 1, &wake, open, None).expect("a pool");
    while pool.region.ready_slots() < pool.region.slots() {
        pool.pass(&wake);
    }
    pool.pass(&wake);
    let (here, there) = UnixStream::pair().expect("a pair");
    here.set_nonblocking(true).expect("a mode");
    let peer = Peer { uid: 0, pid: 0, pidfd };
    let connection = Some(Connection::new(here.into()));
    pool.attach(NewSession { id: SESSION, greeting, connection, peer, sequence: 1, descriptor });
    assert!(pool.sessions.contains_key(&SESSION));
    (pool, wake, there)
}

/// Sends a request, and has it served.
pub(super) fn serve(pool: &mut Pool, client: &mut UnixStream, kind: Kind, message: &impl Serialize) {
    let mut body = Vec::new();
    encode(message, &mut body).expect("it encodes");
    let body_bytes = u32::try_from(body.len()).expect("a small body");
    let header = FrameHeader { kind, flags: FrameFlags::REQUEST, body_bytes, sequence: 2, descriptors: 0 };
    client.write_all(&[&header.to_bytes(), body.as_slice()].concat()).expect("it is written");
    pool.readable(SESSION);
}

/// The keys `0..count`.
pub(super) fn keys(count: u8) -> (Vec<Key>, Vec<u8>) {
    let keys: Vec<Key> = (0..count).map(|n| Key::new(&[n; 16], 0).expect("a key")).collect();
    let mut bytes = Vec::new();
    keys_to_bytes(&keys, &mut bytes);
    (keys, bytes)
}

/// Slots that are being stored to.
pub(super) fn writing(pool: &Pool) -> f64 {
    let values = pool.stats_reply().values;
    let is_writing = |name: &str| name.starts_with("terrace_primary_slots") && name.contains("\"writing\"");
    values.iter().find(|(name, _)| is_writing(name)).map(|(_, value)| *value).expect("slots by state")
}
