//! A session that comes and goes: away, ready or stalled, and never in anybody's way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use terrace_primary::{Region, TableReader};
use terrace_tiers::Time;

use super::connection::{Broken, Connection, Frame};
use super::counters::ClientCounters;
use super::error::ClientError;
use super::host::Host;
use super::machine::Machine;
use super::opening::Opened;
use super::options::ClientOptions;
use crate::protocol::{
    Body, ErrorReply, FrameFlags, FrameHeader, Goodbye, HelloReply, Kind, ProtocolError, StatsReply, decode,
};

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// There is no connection: all is a miss, nothing is stored, nothing waits. It comes back by itself.
    Away,
    /// Calls are answered.
    Ready,
    /// A reply is overdue: until it is in no call waits.
    Stalled,
}

/// A call that was made.
#[derive(Debug)]
pub(crate) enum Called {
    /// The body of the reply.
    Reply(Vec<u8>),
    /// The daemon refused it.
    Refused(ErrorReply),
    /// No reply in time, or not asked because one is overdue.
    Late,
    /// No connection.
    Away,
}

/// A reply for which nobody waits any more, or never did.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub sequence: u64,
    pub kind: Kind,
    /// What the caller of a late call said of it; 0 for others.
    pub tag: u64,
    pub outcome: Result<Vec<u8>, ErrorReply>,
}

/// A scheduler session of one engine that copies by itself. Driven by one thread. No call but [`Session::wait_ready`]
/// waits longer than the call budget.
#[derive(Debug)]
pub struct Session<M = Host> {
    options: ClientOptions,
    machine: M,
    link: Option<Link>,
    /// Number of the last connection, from 1.
    epoch: u64,
    pub(crate) counters: ClientCounters,
    /// What callers said of late calls whose reply was lost with its connection.
    unanswered: Vec<u64>,
}

/// What lasts as long as a connection.
#[derive(Debug)]
struct Link {
    connection: Connection,
    reply: HelloReply,
    region: Arc<Region>,
    table: Option<TableReader>,
    /// Calls whose reply is overdue, with what their callers said of them.
    overdue: HashMap<u64, u64>,
    stalled_since: Option<Time>,
    arrived: VecDeque<Arrived>,
}

impl Session {
    /// A session that is away and begins to connect, on a thread of its own.
    pub fn start(options: ClientOptions) -> Result<Self, ClientError> {
        let machine = Host::start(options.clone())?;
        Ok(Self::on(machine, options))
    }

    /// Waits for a connection. `Err`: why there was none within the time.
    pub fn wait_ready(&mut self, within: Duration) -> Result<(), String> {
        if self.link.is_none() {
            self.machine.wait_opened(within)?;
            self.pump();
        }
        Ok(())
    }
}

impl<M: Machine> Session<M> {
    /// A session on another machine than this process'.
    pub(crate) fn on(machine: M, options: ClientOptions) -> Self {
        let (link, epoch, counters, unanswered) = (None, 0, ClientCounters::default(), Vec::new());
        Self { options, machine, link, epoch, counters, unanswered }
    }

    /// Now, on the machine's clock.
    pub(crate) fn now(&self) -> Time {
        self.machine.now()
    }

    /// How it stands, as far as the last call knows.
    pub fn state(&self) -> SessionState {
        match &self.link {
            None => SessionState::Away,
            Some(link) if link.overdue.is_empty() => SessionState::Ready,
            Some(_) => SessionState::Stalled,
        }
    }

    /// What it was opened with.
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// What it has done.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// What the daemon said when the connection was opened. `None`: away.
    pub fn hello(&self) -> Option<&HelloReply> {
        self.link.as_ref().map(|link| &link.reply)
    }

    /// An empty round trip: how long it took. `None`: away, or late.
    pub fn ping(&mut self) -> Option<Duration> {
        self.pump();
        let start = self.machine.now();
        matches!(self.call::<()>(Kind::Ping, None, 0), Called::Reply(_)).then(|| self.machine.now().since(start))
    }

    /// Statistics of the pool. `None`: away, or late.
    pub fn stats(&mut self) -> Option<Vec<(String, f64)>> {
        self.pump();
        let Called::Reply(body) = self.call::<()>(Kind::Stats, None, 0) else { return None };
        let StatsReply { values } = self.understand("StatsReply", &body)?;
        Some(values)
    }

    /// Number of the connection, from 1; another one is another daemon for all one knows. `None`: away.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.link.is_some().then_some(self.epoch)
    }

    /// The region of the connection.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.link.as_ref().map(|link| &link.region)
    }

    /// The daemon's block table, if it shares it.
    pub(crate) fn table(&self) -> Option<&TableReader> {
        self.link.as_ref()?.table.as_ref()
    }

    /// Since when a reply is overdue.
    pub(crate) fn stalled_for(&self) -> Option<Duration> {
        self.link.as_ref()?.stalled_since.map(|since| self.machine.now().since(since))
    }

    /// Whether the daemon is slow in taking what is sent.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.connection.is_backed_up())
    }

    /// Takes a new connection if one is wanted and there, and what has come. Does not wait.
    pub(crate) fn pump(&mut self) {
        if self.link.is_none() {
            let Some(Opened { connection, reply, region, table }) = self.machine.take() else { return };
            self.epoch += 1;
            self.counters.connects += 1;
            self.link = Some(Link {
                connection,
                reply,
                region,
                table,
                overdue: HashMap::new(),
                stalled_since: None,
                arrived: VecDeque::new(),
            });
        }
        self.take_in();
    }

    /// Takes what has come. Does not wait.
    fn take_in(&mut self) {
        let Some(link) = &mut self.link else { return };
        let taken = link.connection.flush().and_then(|()| link.connection.read());
        // What came before the end counts.
        let sorted = link.sort(None, &mut self.counters).map(|_| ());
        if let Err(broken) = sorted.and(taken) {
            self.lose(&broken);
        }
    }

    /// Whether no reply is overdue, and none has come that nobody took.
    pub(crate) fn is_quiet(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.overdue.is_empty() && link.arrived.is_empty())
    }

    /// What callers said of late calls whose reply was lost with its connection, each once; not of those that said 0.
    pub(crate) fn take_unanswered(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unanswered)
    }

    /// What came and nobody waits for.
    pub(crate) fn take_arrived(&mut self) -> Option<Arrived> {
        self.link.as_mut()?.arrived.pop_front()
    }

    /// Sends without waiting and names what was sent. `None`: away.
    pub(crate) fn post<T: Body>(&mut self, kind: Kind, flags: FrameFlags, body: Option<&T>) -> Option<u64> {
        let connection = &mut self.link.as_mut()?.connection;
        let posted = connection.queue(kind, flags, body).and_then(|sequence| {
            connection.flush()?;
            Ok(sequence)
        });
        match posted {
            Ok(sequence) => Some(sequence),
            Err(broken) => {
                self.lose(&broken);
                None
            }
        }
    }

    /// Sends and waits for the reply, as long as the budget says; takes no new connection. `tag` comes back with a
    /// late reply.
    pub(crate) fn call<T: Body>(&mut self, kind: Kind, body: Option<&T>, tag: u64) -> Called {
        self.take_in();
        let until = self.machine.now().plus(self.options.call_budget);
        let Some(link) = &mut self.link else { return Called::Away };
        if !link.overdue.is_empty() {
            self.counters.stalled_calls += 1;
            return Called::Late;
        }
        match link.exchange(&self.machine, kind, body, until, &mut self.counters) {
            Ok(Ok(frame)) => {
                self.counters.round_trips += 1;
                match outcome(frame) {
                    Ok(Ok(body)) => Called::Reply(body),
                    Ok(Err(refusal)) => {
                        self.counters.refused += 1;
                        tracing::debug!("{kind:?} was refused ({}): {}", refusal.code, refusal.message);
                        Called::Refused(refusal)
                    }
                    Err(error) => {
                        self.lose(&error.into());
                        Called::Away
                    }
                }
            }
            Ok(Err(sequence)) => {
                link.overdue.insert(sequence, tag);
                self.counters.stalls += u64::from(link.stalled_since.is_none());
                link.stalled_since.get_or_insert_with(|| self.machine.now());
                self.counters.timeouts += 1;
                tracing::warn!("the daemon did not answer in time: nothing waits for it until it does");
                Called::Late
            }
            Err(broken) => {
                self.lose(&broken);
                Called::Away
            }
        }
    }

    /// Decodes a body; one that is not valid ends the connection.
    pub(crate) fn understand<T: serde::de::DeserializeOwned>(&mut self, what: &'static str, body: &[u8]) -> Option<T> {
        match decode(what, body) {
            Ok(message) => Some(message),
            Err(error) => {
                self.lose(&error.into());
                None
            }
        }
    }

    /// The daemon said something that cannot be: the connection ends.
    pub(crate) fn give_up(&mut self, what: &str) {
        let what = ProtocolError::Body { what: "reply", why: what.to_owned() };
        self.lose(&what.into());
    }

    /// Waits, `within` at most, until everything is sent.
    pub(crate) fn send_all(&mut self, within: Duration) {
        let until = self.machine.now().plus(within);
        while let Some(link) = &mut self.link {
            match link.connection.flush() {
                Ok(()) if !link.connection.is_backed_up() => return,
                Ok(()) => {}
                Err(broken) => return self.lose(&broken),
            }
            match link.wait(&self.machine, until).and_then(|ready| {
                link.connection.read()?;
                Ok(ready)
            }) {
                Ok(true) => {}
                Ok(false) => return,
                Err(broken) => return self.lose(&broken),
            }
        }
    }

    fn lose(&mut self, broken: &Broken) {
        let Some(link) = self.link.take() else { return };
        let arrived = link.arrived.iter().map(|arrived| arrived.tag);
        self.unanswered.extend(link.overdue.into_values().chain(arrived).filter(|tag| *tag != 0));
        self.counters.disconnects += 1;
        if matches!(broken, Broken::Protocol(_)) {
            self.counters.protocol_faults += 1;
        }
        tracing::warn!("the connection to the daemon ended: {broken}");
        self.machine.want();
    }
}

impl Link {
    /// Waits until there is something to read, or room to send what waits. False: `until` came first.
    fn wait(&self, machine: &impl Machine, until: Time) -> Result<bool, Broken> {
        Ok(machine.wait(self.connection.socket(), self.connection.is_backed_up(), until)?)
    }

    /// Sends a request and waits for its reply. The inner `Err` is its sequence: the reply is late.
    fn exchange<T: Body>(
        &mut self,
        machine: &impl Machine,
        kind: Kind,
        body: Option<&T>,
        until: Time,
        counters: &mut ClientCounters,
    ) -> Result<Result<Frame, u64>, Broken> {
        let sequence = self.connection.queue(kind, FrameFlags::REQUEST, body)?;
        self.connection.flush()?;
        loop {
            if !self.wait(machine, until)? {
                return Ok(Err(sequence));
            }
            self.connection.flush()?;
            let read = self.connection.read();
            if let Some(frame) = self.sort(Some(sequence), counters)? {
                if frame.header.kind == kind {
                    return Ok(Ok(frame));
                }
                return Err(ProtocolError::Kind { got: frame.header.kind as u16 }.into());
            }
            read?;
        }
    }

    /// Takes the frames that are there; the reply to `wanted` is handed out, the others are kept.
    fn sort(&mut self, wanted: Option<u64>, counters: &mut ClientCounters) -> Result<Option<Frame>, Broken> {
        let mut found = None;
        while let Some(frame) = self.connection.next_frame()? {
            let FrameHeader { kind, flags, sequence, .. } = frame.header;
            if !flags.reply {
                if kind != Kind::Goodbye || !flags.one_way {
                    return Err(ProtocolError::Kind { got: kind as u16 }.into());
                }
                let Goodbye { reason } = decode("Goodbye", &frame.body)?;
                tracing::info!("the daemon says goodbye: {reason}");
            } else if wanted == Some(sequence) {
                found = Some(frame);
            } else {
                let tag = self.overdue.remove(&sequence);
                counters.late_replies += u64::from(tag.is_some());
                let outcome = outcome(frame)?;
                self.arrived.push_back(Arrived { sequence, kind, tag: tag.unwrap_or(0), outcome });
            }
        }
        if self.overdue.is_empty() && self.stalled_since.take().is_some() {
            tracing::info!("the daemon answers again");
        }
        Ok(found)
    }
}

fn outcome(frame: Frame) -> Result<Result<Vec<u8>, ErrorReply>, ProtocolError> {
    if frame.header.flags.error {
        return Ok(Err(decode("ErrorReply", &frame.body)?));
    }
    Ok(Ok(frame.body))
}
