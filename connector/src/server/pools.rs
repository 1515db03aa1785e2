//! Which pool serves which namespace. A pool without sessions gives way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_config::Config;

use super::connection::Connection;
use super::counts::Limit;
use super::device::DeviceSource;
use super::error::ServerError;
use super::frames::push_refusal;
use super::hello::Greeting;
use super::parts::PoolParts;
use super::peer::Peer;
use super::pool::Pool;
use super::refusal::Refusal;
use super::session::SessionId;
use super::shares::{Arbiter, Lent};
use super::stats::PoolStats;
use super::wake::Wake;
use crate::protocol::{ErrorCode, Kind};

/// How long a pool that gives way finishes what it is storing.
const GIVE_WAY: Duration = Duration::from_secs(2);

/// A session that has said `Hello`.
pub(super) struct NewSession {
    pub id: SessionId,
    pub greeting: Greeting,
    /// Taken by whoever serves it.
    pub connection: Option<Connection>,
    pub peer: Peer,
    /// Of its `Hello`.
    pub sequence: u64,
    pub descriptor: Option<std::os::fd::OwnedFd>,
}

impl NewSession {
    /// Answers with a refusal; the connection ends with `self`.
    pub fn refuse(mut self, refusal: &Refusal) {
        if let Some(connection) = &mut self.connection {
            push_refusal(&mut connection.output, Kind::Hello, self.sequence, refusal);
            let _ = connection.flush();
        }
    }
}

/// To a pool's thread.
pub(super) enum PoolMessage {
    Session(Box<NewSession>),
    /// Finish what runs within this time, then end.
    Drain(Duration),
    /// End.
    Stop,
    Stats(Sender<PoolStats>),
}

/// Sessions that are not over: of a pool, and of the daemon.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenSessions {
    pool: Arc<AtomicU32>,
    all: Arc<AtomicU32>,
}

impl OpenSessions {
    fn of(all: &Arc<AtomicU32>) -> Self {
        Self { pool: Arc::default(), all: Arc::clone(all) }
    }

    /// One begins.
    pub fn add(&self) {
        self.pool.fetch_add(1, Ordering::AcqRel);
        self.all.fetch_add(1, Ordering::AcqRel);
    }

    /// One is over.
    pub fn remove(&self) {
        self.pool.fetch_sub(1, Ordering::AcqRel);
        self.all.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_idle(&self) -> bool {
        self.pool.load(Ordering::Acquire) == 0
    }
}

/// One pool's place.
struct Place {
    digest: [u8; 32],
    /// Of the places that the configuration shares out.
    seat: u32,
    open: OpenSessions,
    sender: Sender<PoolMessage>,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
    /// When a session last came.
    used: u64,
}

/// All pools of a daemon. Used by the acceptor's thread.
pub(super) struct Pools {
    config: Config,
    /// Where workers' memory is copied from and to; `None`: nowhere.
    devices: Option<Arc<dyn DeviceSource>>,
    places: Vec<Place>,
    all: Arc<AtomicU32>,
    arbiter: Option<Arc<Mutex<Arbiter>>>,
    uses: u64,
    next_session: SessionId,
}

impl Pools {
    pub fn new(config: Config, devices: Option<Arc<dyn DeviceSource>>) -> Self {
        let arbiter = Arbiter::new(&config).map(|arbiter| Arc::new(Mutex::new(arbiter)));
        Self { config, devices, places: Vec::new(), all: Arc::default(), arbiter, uses: 0, next_session: 1 }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Hands a session to the pool of its namespace, if need be in the place of one that has none.
    pub fn admit(&mut self, mut new: NewSession) -> Option<Limit> {
        if self.all.load(Ordering::Acquire) >= self.config.server.sessions {
            let text = format!("{} sessions are open: raise [server] sessions", self.config.server.sessions);
            new.refuse(&Refusal::limit(text));
            return Some(Limit::Sessions);
        }
        let place = match self.place(&new.greeting.digest, &new.greeting.pool.namespace.tenant) {
            Ok(Some(place)) => place,
            Ok(None) => {
                let text = format!(
                    "{} namespaces are in use: raise [server] pools, or end the engines of another model{}",
                    self.config.server.pools,
                    if self.config.has_shares() {
                        "; of a tenant with a share one can be in use at a time"
                    } else {
                        ""
                    }
                );
                new.refuse(&Refusal::limit(text));
                return Some(Limit::Pools);
            }
            Err(error) => {
                new.refuse(&Refusal::new(ErrorCode::Internal, super::pool::told(&error)));
                return None;
            }
        };
        new.id = self.next_session;
        self.next_session += 1;
        self.uses += 1;
        if let Some(place) = self.places.get_mut(place) {
            place.used = self.uses;
            place.digest = new.greeting.digest;
            place.open.add();
            if place.sender.send(PoolMessage::Session(Box::new(new))).is_err() {
                // Its thread is over: the daemon is closing.
                place.open.remove();
            }
            place.wake.wake();
        }
        None
    }

    /// Index of the place for a namespace: its own, a new one, or the one that has been without sessions longest.
    fn place(&mut self, digest: &[u8; 32], tenant: &str) -> Result<Option<usize>, ServerError> {
        if let Some(at) = self.places.iter().position(|place| place.digest == *digest) {
            return Ok(Some(at));
        }
        let seats = self.config.seats(tenant);
        if let Some(seat) = seats.clone().find(|seat| self.places.iter().all(|place| place.seat != *seat)) {
            self.start(*digest, seat)?;
            return Ok(Some(self.places.len() - 1));
        }
        let places = self.places.iter().enumerate().filter(|(_, place)| seats.contains(&place.seat));
        let idle = places.filter(|(_, place)| place.open.is_idle());
        Ok(idle.min_by_key(|(_, place)| place.used).map(|(at, _)| at))
    }

    fn start(&mut self, digest: [u8; 32], index: u32) -> Result<(), ServerError> {
        let (sender, inbox) = channel();
        let wake = Wake::new().map_err(ServerError::system("making an eventfd"))?;
        let open = OpenSessions::of(&self.all);
        let thread = {
            let (config, devices, wake, open) = (self.config.clone(), self.devices.clone(), wake.clone(), open.clone());
            let arbiter = self.arbiter.clone();
            std::thread::Builder::new()
                .name(format!("terrace-pool-{index}"))
                .spawn(move || PoolThread { index, config, devices, arbiter, inbox, wake, open, pool: None }.run())
                .map_err(ServerError::system("starting a thread"))?
        };
        self.places.push(Place { digest, seat: index, open, sender, wake, thread: Some(thread), used: 0 });
        Ok(())
    }

    /// Tells every pool; those that are over do not hear it.
    pub fn tell(&self, message: impl Fn() -> PoolMessage) {
        for place in &self.places {
            let _ = place.sender.send(message());
            place.wake.wake();
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn are_over(&self) -> bool {
        self.places.iter().all(|place| place.thread.as_ref().is_none_or(JoinHandle::is_finished))
    }

    /// Waits for all threads.
    pub fn join(&mut self) {
        for thread in self.places.iter_mut().filter_map(|place| place.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("a pool's thread panicked");
            }
        }
    }
}

/// The thread of a place: one pool after the other.
struct PoolThread {
    index: u32,
    config: Config,
    devices: Option<Arc<dyn DeviceSource>>,
    arbiter: Option<Arc<Mutex<Arbiter>>>,
    inbox: Receiver<PoolMessage>,
    wake: Wake,
    open: OpenSessions,
    pool: Option<Pool>,
}

impl PoolThread {
    fn run(mut self) {
        loop {
            let message = match &mut self.pool {
                None => match self.inbox.recv() {
                    Ok(message) => Some(message),
                    Err(_) => return,
                },
                Some(pool) => {
                    pool.pass(&self.wake);
                    if pool.is_over() {
                        return;
                    }
                    match self.inbox.try_recv() {
                        Ok(message) => {
                            // There may be another.
                            self.wake.wake();
                            Some(message)
                        }
                        Err(TryRecvError::Empty) => None,
                        Err(TryRecvError::Disconnected) => Some(PoolMessage::Stop),
                    }
                }
            };
            match message {
                None => {}
                Some(PoolMessage::Session(new)) => self.session(*new),
                Some(PoolMessage::Drain(within)) => match &mut self.pool {
                    None => return,
                    Some(pool) => pool.drain(within),
                },
                Some(PoolMessage::Stop) => {
                    if let Some(pool) = &mut self.pool {
                        pool.stop();
                    }
                    return;
                }
                Some(PoolMessage::Stats(to)) => {
                    if let Some(pool) = &self.pool {
                        let _ = to.send(pool.stats());
                    }
                }
            }
        }
    }

    fn session(&mut self, new: NewSession) {
        let digest = new.greeting.digest;
        // The acceptor sends another namespace only when the pool has no session.
        if let Some(mut pool) = self.pool.take_if(|pool| pool.digest != digest) {
            tracing::info!(pool = self.index, "a pool without sessions gives way to another namespace");
            pool.give_way(GIVE_WAY);
        }
        if self.pool.is_none() {
            match self.open(&new) {
                Ok(pool) => self.pool = Some(pool),
                Err(why) => {
                    tracing::error!(pool = self.index, "a pool cannot be opened: {why}");
                    new.refuse(&Refusal::new(ErrorCode::Internal, format!("the pool cannot be opened: {why}")));
                    self.open.remove();
                    return;
                }
            }
        }
        if let Some(pool) = &mut self.pool {
            pool.attach(new);
        }
    }

    fn open(&self, new: &NewSession) -> Result<Pool, String> {
        let shape = &new.greeting.pool;
        if self.config.has_shares() && self.config.share_at(self.index).is_none() {
            return Err(
                "nothing is left for this tenant: write a [[tenant]] with guaranteed for it, or for \"*\"".to_owned()
            );
        }
        let lent = self.arbiter.clone().map(|arbiter| Lent::new(arbiter, self.index));
        let config = self.config.for_pool(self.index, shape.namespace.clone(), shape.geometry, "Hello");
        let config = config.map_err(|error| super::pool::told(&error))?;
        let parts = PoolParts::open(&config)?;
        let (digest, name, open) = (new.greeting.digest, region_name(new.id), self.open.clone());
        let mut pool = Pool::open(config, parts, digest, name, &self.wake, open, self.devices.clone())?;
        pool.lend(lent);
        Ok(pool)
    }
}

/// Another number for each region, across daemons too. Never 0.
fn region_name(salt: u64) -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanos = since.as_secs().wrapping_mul(1_000_000_000).wrapping_add(since.subsec_nanos().into());
    (nanos ^ salt.rotate_left(48) ^ u64::from(std::process::id()).rotate_left(32)).max(1)
}
