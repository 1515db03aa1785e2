//! An HTTP proxy that counts and makes faults.
//!
//! It speaks HTTP/1.1 with keep-alive to both sides and streams bodies. What it passes on it does not change: the path
//! and the Host header are signed by S3 clients, so the server sees the address that the client asked for.

mod body;
mod counts;
mod forward;
mod link;
mod operation;
mod rule;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, mpsc as reply};
use std::thread::{self, JoinHandle};
use std::{fmt, io};

use bytes::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use counts::{Count, Counts};
pub use operation::Operation;
pub use rule::{Fault, Rule, RuleId};

use crate::error::{Result, system};
use body::Body;
use counts::Tallies;
use operation::Seen;
use rule::{Decision, Rules};

/// Connections at once. More wait to be taken.
const MAX_CONNECTIONS: usize = 4096;
/// The kernel's queue of those.
const BACKLOG: u32 = 1024;

/// A running proxy; dropping it resets what is open. It has a thread of its own: calls block for moments only.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Partition on or off, and who wants to know that it is. Closed: the end.
    commands: Option<mpsc::UnboundedSender<(bool, reply::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

/// What a proxy's connections share.
struct Shared {
    upstream: SocketAddr,
    client: Client<HttpConnector, Body>,
    rules: Mutex<Rules>,
    tallies: Tallies,
    hang: watch::Sender<bool>,
    /// First answers of listings, by path and query, while [`Fault::StaleList`] is on.
    listings: Mutex<BTreeMap<String, Bytes>>,
}

impl Proxy {
    /// Starts a proxy before `upstream` on a free port of the loopback address. The server need not be there yet.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), upstream)
    }

    /// As [`Self::start`], at an address of the caller's choice; port 0 is any.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System).
    pub fn start_at(listen: SocketAddr, upstream: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("a runtime for the proxy"))?;
        let in_runtime = runtime.enter();
        // Bound and never listening: holds the port while nobody listens on it.
        let holder = socket(listen).map_err(system("binding the proxy"))?;
        let address = holder.local_addr().map_err(system("the proxy's address"))?;
        let listener = listener(address).map_err(system("listening"))?;
        drop(in_runtime);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(HttpConnector::new());
        let shared = Arc::new(Shared {
            upstream,
            client,
            rules: Mutex::default(),
            tallies: Tallies::default(),
            hang: watch::Sender::new(false),
            listings: Mutex::default(),
        });
        let (commands, received) = mpsc::unbounded_channel();
        let run = {
            let shared = shared.clone();
            move || {
                runtime.block_on(accept(shared, listener, received));
                drop(holder);
            }
        };
        let thread = thread::Builder::new().name("s3-proxy".into()).spawn(run).map_err(system("the proxy's thread"))?;
        Ok(Self { address, shared, commands: Some(commands), thread: Some(thread) })
    }

    /// Where clients find it: `http://ADDRESS:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What passed since the start or the last [`Self::reset`].
    pub fn counts(&self) -> Counts {
        self.shared.tallies.counts()
    }

    /// Sets all counts to nothing. Rules, and how often they were applied, stay; requests under way are counted nowhere.
    pub fn reset(&self) {
        self.shared.tallies.reset();
    }

    /// Adds a rule behind those that are there. Latencies of all rules that fire add up; of other faults the first
    /// rule that fires makes its own.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.rules().add(rule)
    }

    /// Takes a rule away, for requests that arrive from now on.
    pub fn remove(&self, id: RuleId) {
        self.shared.rules().remove(id);
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.shared.rules().clear();
        self.shared.listings().clear();
    }

    /// How often this rule's fault was made, also after it was taken away.
    pub fn applied(&self, id: RuleId) -> u64 {
        self.shared.rules().applied(id)
    }

    /// While on, connections and requests are taken and nothing is answered; bodies under way stand still. What has
    /// waited goes on afterwards, as it does at a server that was stopped, if its client is still there.
    pub fn hang(&self, on: bool) {
        self.shared.hang.send_replace(on);
    }

    /// While on, connections are refused. Those that are open are reset before this returns.
    pub fn partition(&self, on: bool) {
        let (done, wait) = reply::channel();
        if let Some(commands) = &self.commands
            && commands.send((on, done)).is_ok()
        {
            // An error is a proxy whose thread ended: there every connection is refused.
            let _ = wait.recv();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the proxy's thread panicked");
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({} -> {})", self.address, self.shared.upstream)
    }
}

impl Shared {
    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listings(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, seen: &Seen) -> Decision {
        self.rules().decide(seen)
    }

    fn made(&self, id: RuleId) {
        self.rules().made(id);
    }
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    socket(address)?.listen(BACKLOG)
}

/// Takes connections until the commands end.
async fn accept(
    shared: Arc<Shared>,
    listener_at_start: TcpListener,
    mut commands: mpsc::UnboundedReceiver<(bool, reply::Sender<()>)>,
) {
    let Ok(address) = listener_at_start.local_addr() else { return };
    let mut open = Some(listener_at_start);
    let partition = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < MAX_CONNECTIONS;
        let taken = async {
            match &open {
                Some(listener) if room => listener.accept().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            command = commands.recv() => {
                let on = command.as_ref().is_none_or(|(on, _)| *on);
                if on {
                    open = None;
                    partition.send_replace(true);
                    while connections.join_next().await.is_some() {}
                } else if open.is_none() {
                    partition.send_replace(false);
                    open = Some(listener(address).expect("the port is held"));
                }
                match command {
                    // Who asked may have gone.
                    Some((_, done)) => { let _ = done.send(()); }
                    None => return,
                }
            }
            taken = taken => {
                // An error is a connection that ended in the queue.
                if let Ok((stream, _)) = taken {
                    let (shared, partition) = (shared.clone(), partition.subscribe());
                    connections.spawn(link::serve(stream, shared, partition));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
