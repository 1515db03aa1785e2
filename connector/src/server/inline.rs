//! The pools of a daemon without its threads: whoever holds them passes through them, with a clock and tiers of their own. For a simulator.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use terrace_config::{Config, Namespace};
use terrace_primary::Region;
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::{Clock, Time};

use super::acceptor::{HELLO, MAX_UNOPENED, READ_BYTES};
use super::connection::{Connection, Input};
use super::error::ServerError;
use super::frames::push_refusal;
use super::hello::Greeting;
use super::parts::PoolParts;
use super::peer::Peer;
use super::pool::Pool;
use super::pools::{NewSession, OpenSessions};
use super::refusal::Refusal;
use super::session::{Role, Session, SessionId};
use super::wake::Wake;
use crate::protocol::{ErrorCode, Kind, MAX_HELLO_BYTES};

/// Makes the parts of a pool for the namespace and geometry of this configuration; `Err`: why there is none.
type OpenParts = Box<dyn FnMut(&Config) -> Result<PoolParts, String>>;

/// Sessions and pools of a daemon, on the caller's thread. Nothing in it sleeps, listens, or reads a clock but the given one. Of the daemon it
/// leaves out threads, and with them sessions of role "tier" (whose rows threads copy), copies on devices, shares, and pools that give way
/// to others.
pub struct InlineServer {
    config: Config,
    clock: Arc<dyn Clock>,
    open: OpenParts,
    wake: Wake,
    unopened: Vec<(Connection, Peer, Time)>,
    pools: Vec<Pool>,
    next_session: SessionId,
}

impl InlineServer {
    /// Without sessions and pools: a namespace's first session opens its pool, over what `open` gives. Fails where the process has no
    /// descriptor left.
    pub fn new(
        config: Config,
        clock: Arc<dyn Clock>,
        open: impl FnMut(&Config) -> Result<PoolParts, String> + 'static,
    ) -> Result<Self, ServerError> {
        let wake = Wake::new().map_err(ServerError::system("making an eventfd"))?;
        let (unopened, pools) = (Vec::new(), Vec::new());
        Ok(Self { config, clock, open: Box::new(open), wake, unopened, pools, next_session: 1 })
    }

    /// A process connects: `socket` is the daemon's end, not blocking. `process` is readable once the process is gone; `None`: nobody tells.
    pub fn connect(&mut self, socket: OwnedFd, pid: i32, process: Option<OwnedFd>) {
        let mut connection = Connection::new(socket);
        if self.unopened.len() >= MAX_UNOPENED {
            let text = format!("{MAX_UNOPENED} connections have not said Hello: try again");
            return refuse(&mut connection, 0, &Refusal::new(ErrorCode::Retry, text));
        }
        let until = self.clock.now().plus(HELLO);
        self.unopened.push((connection, Peer { uid: 0, pid, pidfd: process }, until));
    }

    /// Serves what has come, and does what is due by now. Does not wait.
    pub fn pass(&mut self) {
        let now = self.clock.now();
        for (mut connection, peer, until) in std::mem::take(&mut self.unopened) {
            let input = connection.read(READ_BYTES);
            let frame = connection.input.frame(MAX_HELLO_BYTES).map(|frame| frame.map(|(header, _)| header));
            match (input, frame) {
                (Input::Refused(refusal), _) => refuse(&mut connection, 0, &refusal),
                (_, Err(error)) => refuse(&mut connection, 0, &error.into()),
                (_, Ok(Some(header))) => match Greeting::take(&mut connection, &header, &self.config) {
                    Ok((greeting, descriptor)) => {
                        let (id, sequence) = (self.next_session, header.sequence);
                        self.next_session += 1;
                        let connection = Some(connection);
                        self.admit(NewSession { id, greeting, connection, peer, sequence, descriptor });
                    }
                    Err(refusal) => refuse(&mut connection, header.sequence, &refusal),
                },
                (Input::End, Ok(None)) => {}
                (_, Ok(None)) if until <= now => {
                    let refusal = Refusal::new(ErrorCode::NotAdmitted, "no Hello came within 2 seconds");
                    refuse(&mut connection, 0, &refusal);
                }
                (_, Ok(None)) => self.unopened.push((connection, peer, until)),
            }
        }
        for pool in &mut self.pools {
            pool.pass_within(Duration::ZERO, &self.wake);
        }
    }

    fn admit(&mut self, new: NewSession) {
        let digest = new.greeting.digest;
        let at = match self.pools.iter().position(|pool| pool.digest == digest) {
            Some(at) => at,
            None => match self.open(&new) {
                Ok(pool) => {
                    self.pools.push(pool);
                    self.pools.len() - 1
                }
                Err(why) => return new.refuse(&Refusal::new(ErrorCode::Internal, why)),
            },
        };
        if let Some(pool) = self.pools.get_mut(at) {
            pool.open.add();
            pool.attach(new);
        }
    }

    fn open(&mut self, new: &NewSession) -> Result<Pool, String> {
        let shape = &new.greeting.pool;
        let config = Config { namespace: shape.namespace.clone(), geometry: shape.geometry, ..self.config.clone() };
        let parts = (self.open)(&config)?;
        Pool::open(config, parts, new.greeting.digest, new.id, &self.wake, OpenSessions::default(), None)
    }

    /// The pools, in the order in which they were opened.
    pub fn pools(&self) -> impl Iterator<Item = PoolView<'_>> {
        self.pools.iter().map(PoolView)
    }

    /// Ends everything, as `terrace serve` does when it is told to stop. Waits for the tiers, as long as `deadlines.drain` allows.
    pub fn stop(&mut self) {
        self.unopened.clear();
        self.pools.iter_mut().for_each(Pool::stop);
    }
}

fn refuse(connection: &mut Connection, sequence: u64, refusal: &Refusal) {
    push_refusal(&mut connection.output, Kind::Hello, sequence, refusal);
    let _ = connection.flush();
}

/// A pool of an [`InlineServer`], looked into between two passes.
#[derive(Clone, Copy)]
pub struct PoolView<'a>(&'a Pool);

impl<'a> PoolView<'a> {
    /// Digest of its namespace and geometry.
    pub const fn digest(self) -> &'a [u8; 32] {
        &self.0.digest
    }

    /// What makes bytes in it interchangeable.
    pub const fn namespace(self) -> &'a Namespace {
        &self.0.config.namespace
    }

    /// Its manager.
    pub const fn manager(self) -> &'a TieringOffloadingManager {
        &self.0.manager
    }

    /// Bytes of its longest keys.
    pub const fn key_bytes(self) -> usize {
        self.0.key_bytes
    }

    /// The memory of its slots.
    pub const fn region(self) -> &'a Arc<Region> {
        &self.0.region
    }

    /// Jobs of an engine that are not over; `None`: the pool knows no engine of this name.
    pub fn jobs(self, engine: &str) -> Option<usize> {
        self.0.engines.get(engine).map(|engine| engine.jobs.len())
    }

    /// Engines that have sessions or jobs.
    pub fn engines(self) -> usize {
        self.0.engines.len()
    }

    /// Sessions that are not over, in the order in which they were opened.
    pub fn sessions(self) -> impl Iterator<Item = SessionView<'a>> {
        let rank = |session: &Session| (session.role == Role::Worker).then_some(session.rank);
        self.0.sessions.values().map(move |session| SessionView {
            engine: &session.engine,
            rank: rank(session),
            is_connected: session.connection.is_some(),
            slots: session.slots,
            load: session.load(),
            waiting_bytes: session.connection.as_ref().map_or(0, Connection::waiting_bytes),
            sent_bytes: session.connection.as_ref().map_or(0, Connection::sent_bytes),
        })
    }
}

/// What a session holds.
#[derive(Clone, Copy, Debug)]
pub struct SessionView<'a> {
    /// The engine's name.
    pub engine: &'a str,
    /// A worker's rank; `None`: the scheduler.
    pub rank: Option<u32>,
    /// Whether it has a connection. One without is kept for what may still be copied.
    pub is_connected: bool,
    /// Slots leased, loading or being stored.
    pub slots: u32,
    /// Jobs, leases and untold outcomes: what `limits.jobs` of the protocol bounds.
    pub load: usize,
    /// Bytes of replies that wait to be written.
    pub waiting_bytes: usize,
    /// Bytes written to its connection.
    pub sent_bytes: u64,
}
