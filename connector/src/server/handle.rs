//! Starting a daemon, and what the one who started it can do.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use terrace_config::Config;

use super::acceptor::{Acceptor, Command};
use super::counts::ServerCounts;
use super::device;
use super::error::ServerError;
use super::listener::Listener;
use super::locks::DirectoryLocks;
use super::options::ServerOptions;
use super::peer::{self, Admission};
use super::pools::Pools;
use super::wake::Wake;

/// How long [`ServerHandle::stats`] waits for pools that are busy.
const STATS: Duration = Duration::from_secs(2);

/// The daemon.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Binds the socket and locks the tier directories, and returns once it listens; threads serve from then on. Region
    /// and tiers of a namespace are opened by its first session. Fails if another daemon has the socket or a directory,
    /// or the configuration names what is not there.
    pub fn start(config: &Config, options: ServerOptions) -> Result<ServerHandle, ServerError> {
        let path = options.socket.unwrap_or_else(|| config.server.socket.clone());
        let admission = Admission::new(&config.server)?;
        let group = peer::group(&config.server)?;
        // Before the socket: nobody connects to a daemon that cannot serve.
        let devices = device::source(&config.copy, options.devices).map_err(|source| ServerError::Device { source })?;
        let locks = DirectoryLocks::take(config)?;
        let listener = Listener::bind(&path, group)?;
        let wake = Wake::new().map_err(ServerError::system("making an eventfd"))?;
        let counts = Arc::<Mutex<ServerCounts>>::default();
        let (commands, inbox) = channel();
        let pools = Pools::new(config.clone(), devices);
        let acceptor = Acceptor::new(pools, listener, admission, inbox, wake.clone(), Arc::clone(&counts), locks)
            .map_err(ServerError::system("making an epoll"))?;
        let thread = std::thread::Builder::new()
            .name("terrace-accept".to_owned())
            .spawn(move || acceptor.run())
            .map_err(ServerError::system("starting a thread"))?;
        Ok(ServerHandle { path, commands, wake, counts, thread: Mutex::new(Some(thread)) })
    }
}

/// A running daemon. Dropped, it stops.
#[derive(Debug)]
pub struct ServerHandle {
    path: PathBuf,
    commands: Sender<Command>,
    wake: Wake,
    counts: Arc<Mutex<ServerCounts>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.path
    }

    /// Ends in order, and returns at once: no new sessions, lookups miss, stores are refused; what runs has `deadline`
    /// to finish. Follow with [`ServerHandle::join`].
    pub fn drain(&self, deadline: Duration) {
        self.tell(Command::Drain(deadline));
    }

    /// Ends without waiting for engines, and returns at once. Follow with [`ServerHandle::join`].
    pub fn stop(&self) {
        self.tell(Command::Stop);
    }

    /// Waits until all threads have ended. After [`ServerHandle::drain`] or [`ServerHandle::stop`].
    pub fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the acceptor's thread panicked");
        }
    }

    /// Whether all threads have ended.
    pub fn is_over(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Names and values of all pools, each name with the label `pool` (the first 8 hex digits of the namespace's
    /// digest), and of the daemon. Waits for the pools, 2 seconds at most.
    pub fn stats(&self) -> Vec<(String, f64)> {
        let (to, from) = channel();
        let (tell_pools, pools) = channel();
        self.tell(Command::Stats(to, tell_pools));
        let until = Instant::now() + STATS;
        let asked = pools.recv_timeout(STATS).unwrap_or(0);
        let mut values = self.own_stats();
        for _ in 0..asked {
            // A place without a pool drops the question, and with the last one the channel ends.
            let Ok(pool) = from.recv_timeout(until.saturating_duration_since(Instant::now())) else { break };
            let label = crate::metrics::pool_label(&pool.digest);
            values.extend(pool.values.into_iter().map(|(name, value)| (with_pool(&name, &label), value)));
        }
        values
    }

    fn own_stats(&self) -> Vec<(String, f64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        crate::metrics::flat_server(&counts)
    }

    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
        self.wake.wake();
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

fn with_pool(name: &str, label: &str) -> String {
    match name.split_once('{') {
        Some((name, labels)) => format!("{name}{{pool=\"{label}\",{labels}"),
        None => format!("{name}{{pool=\"{label}\"}}"),
    }
}
