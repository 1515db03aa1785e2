//! The acceptor: who connects is checked, reads as far as `Hello`, and goes to its pool.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{Connection, Input};
use super::counts::{Limit, ServerCounts};
use super::frames::push_refusal;
use super::hello::Greeting;
use super::listener::Listener;
use super::locks::DirectoryLocks;
use super::peer::{Admission, Peer};
use super::poller::Poller;
use super::pools::{NewSession, PoolMessage, Pools};
use super::refusal::Refusal;
use super::stats::PoolStats;
use super::wake::Wake;
use crate::metrics::ServerPublisher;
use crate::protocol::{ErrorCode, FrameHeader, Kind, MAX_HELLO_BYTES};

/// A connection says `Hello` within this time.
pub(super) const HELLO: Duration = Duration::from_secs(2);
/// Connections that have not said it, at most.
pub(super) const MAX_UNOPENED: usize = 64;
/// Connections accepted before others are served.
const ACCEPTS: usize = 64;
/// Bytes read at once, or more.
pub(super) const READ_BYTES: usize = 4 << 10;
/// How often it is looked whether the pools of a closing daemon are over.
const NAP: Duration = Duration::from_millis(5);
/// How often what was counted is published.
const PUBLISH: Duration = Duration::from_secs(1);
/// How long nothing is accepted when the process has no descriptor left.
const BREATH: Duration = Duration::from_millis(50);

const LISTENER: u64 = 0;
const WAKE: u64 = u64::MAX;

/// To the acceptor.
pub(super) enum Command {
    Drain(Duration),
    Stop,
    /// Ask all pools; the answer says how many will answer.
    Stats(Sender<PoolStats>, Sender<usize>),
}

/// A connection that has not said `Hello`.
struct Unopened {
    connection: Connection,
    peer: Peer,
    until: Instant,
}

pub(super) struct Acceptor {
    pub pools: Pools,
    pub listener: Option<Listener>,
    pub admission: Admission,
    pub commands: Receiver<Command>,
    pub wake: Wake,
    pub poller: Poller,
    pub counts: Arc<Mutex<ServerCounts>>,
    /// Held as long as a pool may use the directories.
    pub _locks: DirectoryLocks,
    unopened: BTreeMap<u64, Unopened>,
    next: u64,
    /// Nothing is accepted before.
    pause: Option<Instant>,
    published: ServerPublisher,
    publish_at: Instant,
}

impl Acceptor {
    pub fn new(
        pools: Pools,
        listener: Listener,
        admission: Admission,
        commands: Receiver<Command>,
        wake: Wake,
        counts: Arc<Mutex<ServerCounts>>,
        locks: DirectoryLocks,
    ) -> Result<Self, rustix::io::Errno> {
        let poller = Poller::new()?;
        poller.add(listener.fd(), LISTENER)?;
        poller.add(&wake, WAKE)?;
        Ok(Self {
            pools,
            listener: Some(listener),
            admission,
            commands,
            wake,
            poller,
            counts,
            _locks: locks,
            unopened: BTreeMap::new(),
            next: 1,
            pause: None,
            published: ServerPublisher::new(),
            publish_at: Instant::now(),
        })
    }

    /// Serves until told to stop and all pools are over.
    pub fn run(mut self) {
        let mut ready = Vec::new();
        let mut closing = false;
        loop {
            self.poller.wait(self.timeout(closing), &mut ready);
            for event in &ready {
                match event.token {
                    LISTENER => self.accept(),
                    WAKE => self.wake.clear(),
                    token => self.read(token),
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                closing |= self.command(command);
            }
            let now = Instant::now();
            self.expire(now);
            self.publish(now);
            if self.pause.is_some_and(|until| until <= now) {
                self.pause = None;
                if let Some(listener) = &self.listener {
                    let _ = self.poller.add(listener.fd(), LISTENER);
                }
            }
            if closing && self.pools.are_over() {
                self.pools.join();
                return;
            }
        }
    }

    fn timeout(&self, closing: bool) -> Option<Duration> {
        if closing {
            return Some(NAP);
        }
        let next = self.unopened.values().map(|unopened| unopened.until).chain(self.pause);
        let next = next.fold(self.publish_at, Instant::min);
        // Whole milliseconds, upwards: not woken too early again and again.
        let left = next.saturating_duration_since(Instant::now()).as_millis();
        Some(Duration::from_millis(u64::try_from(left).unwrap_or(0) + 1))
    }

    /// True: the daemon is closing.
    fn command(&mut self, command: Command) -> bool {
        match command {
            Command::Drain(within) => {
                self.close();
                self.pools.tell(|| PoolMessage::Drain(within));
                true
            }
            Command::Stop => {
                self.close();
                self.pools.tell(|| PoolMessage::Stop);
                true
            }
            Command::Stats(to, pools) => {
                let _ = pools.send(self.pools.len());
                self.pools.tell(|| PoolMessage::Stats(to.clone()));
                false
            }
        }
    }

    /// No new sessions.
    fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.poller.remove(listener.fd());
        }
        for (_, mut unopened) in std::mem::take(&mut self.unopened) {
            let refusal = Refusal::new(ErrorCode::Closing, "the daemon is closing");
            push_refusal(&mut unopened.connection.output, Kind::Hello, 0, &refusal);
            let _ = unopened.connection.flush();
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                    tracing::warn!("a connection cannot be accepted: no descriptor is left (ulimit -n)");
                    self.poller.remove(listener.fd());
                    self.pause = Some(Instant::now() + BREATH);
                    return;
                }
                Err(_) => return,
            };
            self.count(|counts| counts.connections += 1);
            let Some(peer) = Peer::of(&socket) else { continue };
            let mut connection = Connection::new(socket);
            if !self.admission.admits(peer.uid) {
                self.count(|counts| counts.refused_peers += 1);
                tracing::warn!(uid = peer.uid, pid = peer.pid, "a user is not admitted: [server] allow_users");
                let text = format!("user {} is not admitted: add it to [server] allow_users", peer.uid);
                let refusal = Refusal::new(ErrorCode::NotAdmitted, text);
                push_refusal(&mut connection.output, Kind::Hello, 0, &refusal);
                let _ = connection.flush();
                continue;
            }
            if self.unopened.len() >= MAX_UNOPENED {
                self.count(|counts| counts.refuse(Limit::Unopened));
                let text = format!("{MAX_UNOPENED} connections have not said Hello: try again");
                push_refusal(&mut connection.output, Kind::Hello, 0, &Refusal::new(ErrorCode::Retry, text));
                let _ = connection.flush();
                continue;
            }
            let token = self.next;
            self.next += 1;
            if self.poller.add(&connection, token).is_ok() {
                self.unopened.insert(token, Unopened { connection, peer, until: Instant::now() + HELLO });
                self.read(token);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        let late: Vec<u64> =
            self.unopened.iter().filter(|(_, unopened)| unopened.until <= now).map(|(token, _)| *token).collect();
        for token in late {
            self.count(|counts| counts.refuse(Limit::HelloDeadline));
            self.refuse(token, 0, &Refusal::new(ErrorCode::NotAdmitted, "no Hello came within 2 seconds"));
        }
    }

    fn refuse(&mut self, token: u64, sequence: u64, refusal: &Refusal) {
        if let Some(mut unopened) = self.unopened.remove(&token) {
            self.poller.remove(&unopened.connection);
            push_refusal(&mut unopened.connection.output, Kind::Hello, sequence, refusal);
            let _ = unopened.connection.flush();
        }
    }

    fn malformed(&mut self, token: u64, sequence: u64, refusal: &Refusal) {
        self.count(|counts| counts.protocol_errors += 1);
        self.refuse(token, sequence, refusal);
    }

    fn read(&mut self, token: u64) {
        let Some(unopened) = self.unopened.get_mut(&token) else { return };
        match unopened.connection.read(READ_BYTES) {
            Input::Nothing => return,
            Input::Some => {}
            Input::End => {
                self.poller.remove(&unopened.connection);
                self.unopened.remove(&token);
                return;
            }
            Input::Refused(refusal) => return self.malformed(token, 0, &refusal),
        }
        match unopened.connection.input.frame(MAX_HELLO_BYTES) {
            Ok(None) => {}
            Ok(Some((header, _))) => self.hello(token, &header),
            Err(error) => self.malformed(token, 0, &error.into()),
        }
    }

    /// The first frame is here.
    fn hello(&mut self, token: u64, header: &FrameHeader) {
        let Some(unopened) = self.unopened.get_mut(&token) else { return };
        let greeting = Greeting::take(&mut unopened.connection, header, self.pools.config());
        let (greeting, descriptor) = match greeting {
            Ok(greeting) => greeting,
            Err(refusal) => return self.malformed(token, header.sequence, &refusal),
        };
        let Some(Unopened { connection, peer, .. }) = self.unopened.remove(&token) else { return };
        self.poller.remove(&connection);
        let (sequence, connection) = (header.sequence, Some(connection));
        if let Some(limit) = self.pools.admit(NewSession { id: 0, greeting, connection, peer, sequence, descriptor }) {
            self.count(|counts| counts.refuse(limit));
        }
    }

    /// Tells the recorder of metrics, if there is one, what was counted; once a second.
    fn publish(&mut self, now: Instant) {
        if now < self.publish_at {
            return;
        }
        self.publish_at = now + PUBLISH;
        let pools = self.pools.len() as u64;
        self.count(|counts| counts.pools = pools);
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.published.publish(&counts);
    }

    fn count(&self, count: impl FnOnce(&mut ServerCounts)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
