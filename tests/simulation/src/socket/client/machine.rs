//! The machine that the product's client runs on: the world's clock, connections through relays, and waiting, in which
//! the daemon and its disks go on.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_connector::client::{ClientError, ClientOptions, Machine, Opened, Opening};
use terrace_connector::protocol::ErrorCode;
use terrace_tiers::{Clock, ManualClock, Time};

use super::super::wire::{Process, pair};
use super::relay::Relay;
use super::{SharedBelow, SharedServer};
use crate::rng::Rng;

/// How long an answer to `Hello` is waited for.
const HELLO: Duration = Duration::from_secs(5);
/// The least time that passes in one turn of waiting.
const TURN_NS: u64 = 20_000;

/// What a client's process has of the world.
pub(crate) struct Surroundings {
    pub clock: ManualClock,
    pub server: SharedServer,
    pub below: SharedBelow,
    pub rng: Rng,
    pub options: ClientOptions,
    /// The engine's name.
    pub name: String,
    pub process: Process,
    pub relays: Vec<Relay>,
    pub delay_per_mille: u32,
    /// Nothing of what it says is heard.
    pub is_unheard: bool,
    opening: Option<(Opening, Time)>,
    wanted: bool,
    /// Sessions that were refused.
    pub refused: u64,
    /// Why no session could be opened, where there is no excuse.
    pub fault: Option<ClientError>,
}

impl Surroundings {
    pub fn new(
        (clock, server, below): (ManualClock, SharedServer, SharedBelow),
        rng: Rng,
        (options, name, process): (ClientOptions, String, Process),
        delay_per_mille: u32,
    ) -> Self {
        Self {
            clock,
            server,
            below,
            rng,
            options,
            name,
            process,
            relays: Vec::new(),
            delay_per_mille,
            is_unheard: false,
            opening: None,
            wanted: true,
            refused: 0,
            fault: None,
        }
    }

    /// Carries what is on its way.
    pub fn carry(&mut self) {
        if !self.is_unheard {
            self.relays.iter_mut().for_each(|relay| relay.carry(&mut self.rng, self.delay_per_mille));
            self.relays.retain(|relay| !relay.is_over());
        }
    }

    /// Every connection breaks.
    pub fn cut(&mut self) {
        self.relays.iter_mut().for_each(|relay| relay.cut(&mut self.rng));
        self.relays.clear();
    }

    /// There is one connection, and nothing is on its way on it.
    pub fn is_quiet(&self) -> bool {
        matches!(&self.relays[..], [relay] if relay.is_empty()) && !self.is_unheard
    }

    /// Some of the time passes that a call waits.
    fn go_on(&mut self, left: Duration) {
        let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let by_ns = self.rng.skewed(left_ns).max(TURN_NS).min(left_ns);
        self.clock.advance(Duration::from_nanos(by_ns));
        self.below.borrow().iter().for_each(|below| below.disk.run());
        self.carry();
        self.server.borrow_mut().pass();
        self.carry();
    }

    fn dial(&mut self) {
        let (here, there) = pair();
        let server = self.process.dial(&mut self.server.borrow_mut());
        self.relays.push(Relay::new(there, server));
        match Opening::begin(here.into(), &self.options, &self.name) {
            Ok(opening) => self.opening = Some((opening, self.clock.now().plus(HELLO))),
            Err(error) => self.failed(error),
        }
    }

    fn take(&mut self) -> Option<Opened> {
        if !self.wanted {
            return None;
        }
        let Some((opening, until)) = self.opening.take() else {
            if self.rng.chance(300) {
                self.dial();
            }
            return None;
        };
        match opening.advance(&self.options) {
            Ok(ControlFlow::Break(opened)) => {
                self.wanted = false;
                return Some(opened);
            }
            Ok(ControlFlow::Continue(opening)) if self.clock.now() < until => self.opening = Some((opening, until)),
            Ok(ControlFlow::Continue(_)) => {}
            Err(error) => self.failed(error),
        }
        None
    }

    fn failed(&mut self, error: ClientError) {
        self.refused += 1;
        let is_usual = match &error {
            ClientError::Io(_) => true,
            ClientError::Refused { code, .. } => matches!(
                ErrorCode::from_number(*code),
                ErrorCode::NotAdmitted | ErrorCode::Retry | ErrorCode::Limit | ErrorCode::Closing
            ),
            _ => false,
        };
        if !is_usual {
            self.fault = Some(error);
        }
    }
}

/// As the client sees it.
pub(crate) struct Simulated(pub Rc<RefCell<Surroundings>>);

impl Machine for Simulated {
    fn now(&self) -> Time {
        self.0.borrow().clock.now()
    }

    fn wait(&self, socket: BorrowedFd<'_>, to_send: bool, until: Time) -> io::Result<bool> {
        let mut world = self.0.borrow_mut();
        loop {
            if is_ready(socket, to_send)? {
                return Ok(true);
            }
            let left = until.since(world.clock.now());
            if left.is_zero() {
                return Ok(false);
            }
            world.go_on(left);
        }
    }

    fn want(&self) {
        self.0.borrow_mut().wanted = true;
    }

    fn take(&self) -> Option<Opened> {
        self.0.borrow_mut().take()
    }
}

fn is_ready(socket: BorrowedFd<'_>, to_send: bool) -> io::Result<bool> {
    let wanted = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut sockets = [PollFd::from_borrowed_fd(socket, wanted)];
    Ok(poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}
