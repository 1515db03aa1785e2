//! Connections that end while their process lives, or seems to. The time is given, not waited for.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use terrace_config::Config;
use terrace_primary::Key;
use terrace_tiers::Time;

use super::UNSEEN;
use crate::protocol::{
    FrameFlags, FrameHeader, Hello, Kind, PrepareStore, WireGeometry, WireNamespace, encode, keys_to_bytes,
};
use crate::server::connection::Connection;
use crate::server::hello::Greeting;
use crate::server::peer::Peer;
use crate::server::pool::Pool;
use crate::server::pools::{NewSession, OpenSessions};
use crate::server::wake::Wake;

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: Vec::new(),
        role: "scheduler".to_owned(),
        engine: "e".to_owned(),
        rank: 0,
        store_workers: 0,
        load_workers: 0,
        namespace: WireNamespace::default(),
        geometry: WireGeometry {
            block_bytes: 4096,
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: 1,
            hash_bytes: 16,
        },
        foreign: None,
        client: "test".to_owned(),
    }
}

/// A pool with one session, of a process whose end is told by `pidfd`.
fn pool(pidfd: Option<OwnedFd>) -> (Pool, UnixStream) {
    let text = "[primary]\nblocks = 16\nhuge_pages = \"off\"\n[geometry]\nblock_bytes = \"4KiB\"\nhash_bytes = 16\n";
    let config = Config::parse(text, "test").expect("a good configuration");
    let greeting = Greeting::check(hello(), &config, 0).expect("a good Hello");
    let wake = Wake::new().expect("an eventfd");
    let mut pool =
        Pool::open(greeting.pool.clone(), greeting.digest, 1, &wake, OpenSessions::default()).expect("a pool");
    while pool.region.ready_slots() < pool.region.slots() {
        pool.pass(&wake);
    }
    pool.pass(&wake);
    let (here, there) = UnixStream::pair().expect("a pair");
    here.set_nonblocking(true).expect("a mode");
    let peer = Peer { uid: 0, pid: 0, pidfd };
    let connection = Some(Connection::new(here.into()));
    pool.attach(NewSession { id: 1, greeting, connection, peer, sequence: 1, descriptor: None });
    (pool, there)
}

/// Four slots are being stored to.
fn store(pool: &mut Pool, client: &mut UnixStream) {
    let keys: Vec<Key> = (0..4_u8).map(|n| Key::new(&[n; 16], 0).expect("a key")).collect();
    let mut message = PrepareStore { request: 1, job: 1, allow_partial: false, keys: Vec::new() };
    keys_to_bytes(&keys, &mut message.keys);
    let mut body = Vec::new();
    encode(&message, &mut body).expect("it encodes");
    let (kind, body_bytes) = (Kind::PrepareStore, body.len() as u32);
    let header = FrameHeader { kind, flags: FrameFlags::REQUEST, body_bytes, sequence: 2, descriptors: 0 };
    client.write_all(&[&header.to_bytes(), body.as_slice()].concat()).expect("it is written");
    pool.readable(1);
}

fn writing(pool: &Pool) -> f64 {
    let values = pool.stats_reply().values;
    let is_writing = |name: &str| name.starts_with("terrace_primary_slots") && name.contains("\"writing\"");
    values.iter().find(|(name, _)| is_writing(name)).map(|(_, value)| *value).expect("slots by state")
}

#[test]
fn a_process_that_nobody_sees_counts_as_gone_a_while_after_its_connection() {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    for (pidfd, is_kept) in [(None, false), (Some(own), true)] {
        let (mut pool, mut client) = pool(pidfd);
        store(&mut pool, &mut client);
        assert_eq!(writing(&pool), 4.0);
        drop(client);
        pool.readable(1);
        let closed_at = pool.sessions.get(&1).and_then(|session| session.closed_at).expect("it is kept");
        pool.keep_sessions(Time(closed_at.plus(UNSEEN).0 - 1));
        assert_eq!((pool.sessions.len(), writing(&pool)), (1, 4.0), "it may still write");
        pool.keep_sessions(closed_at.plus(UNSEEN));
        let kept = usize::from(is_kept);
        assert_eq!((pool.sessions.len(), pool.engines.len(), writing(&pool)), (kept, kept, 4.0 * kept as f64));
        // One that is seen to live keeps them for ever.
        pool.keep_sessions(closed_at.plus(Duration::from_secs(1_000_000)));
        assert_eq!(pool.sessions.len(), kept);
    }
}
