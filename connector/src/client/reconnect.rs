//! The thread that opens sessions, again and again with growing pauses, so that no call ever waits for it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::dial::open_as;
use super::error::ClientError;
use super::opening::Opened;
use super::options::ClientOptions;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A session that lasted so long was a good one: pauses start over.
const LASTING: Duration = Duration::from_secs(1);

/// Opens sessions behind the back of their user.
#[derive(Debug)]
pub(crate) struct Reconnector {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether `state` holds an open session: seen without the lock.
    is_open: AtomicBool,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    opened: Option<Opened>,
    last_error: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconnector {
    /// Starts the thread; it begins at once.
    pub fn start(options: ClientOptions) -> Result<Self, ClientError> {
        let shared = Arc::new(Shared::default());
        shared.lock().wanted = true;
        let theirs = Arc::clone(&shared);
        let work = move || run(&options, &theirs);
        let thread = thread::Builder::new().name("terrace-connect".to_owned()).spawn(work);
        Ok(Self { shared, thread: Some(thread.map_err(ClientError::Thread)?) })
    }

    /// The session is lost: another one is wanted.
    pub fn want(&self) {
        self.shared.lock().wanted = true;
        self.shared.changed.notify_all();
    }

    /// An open session, if there is one by now. Does not wait.
    pub fn take(&self) -> Option<Opened> {
        if !self.shared.is_open.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.shared.lock();
        self.shared.is_open.store(false, Ordering::Release);
        state.opened.take()
    }

    /// Waits until there is a session to take. `Err`: why there was none within the time.
    pub fn wait(&self, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        let mut state = self.shared.lock();
        while state.opened.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let within_ms = within.as_millis();
                return Err(state.last_error.clone().unwrap_or(format!("no answer within {within_ms} ms")));
            }
            let woken = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = woken.0;
        }
        Ok(())
    }
}

impl Drop for Reconnector {
    fn drop(&mut self) {
        let state = self.shared.lock();
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        drop(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(options: &ClientOptions, shared: &Shared) {
    let chance = chance();
    // The same name each time: the daemon then takes ends of jobs of an earlier connection. Numbers of processes are not
    // enough, for containers have their own, and a process may have several clients.
    let hello = options.hello(format!("{}-{}-{chance:016x}", options.engine, std::process::id()));
    let mut pauses = Pauses::new(chance);
    let mut opened_at: Option<Instant> = None;
    while is_wanted(shared) {
        // A session that ended as soon as it was open is no better than none.
        if let Some(opened_at) = opened_at.take() {
            if opened_at.elapsed() > LASTING {
                pauses.start_over();
            }
            sleep(shared, shared.lock(), pauses.next());
        }
        match open_as(options, &hello, &shared.stop) {
            Ok(opened) => {
                tracing::info!(session = opened.reply.session, region = opened.reply.region, "connected to the daemon");
                opened_at = Some(Instant::now());
                let mut state = shared.lock();
                state.wanted = false;
                state.last_error = None;
                state.opened = Some(opened);
                shared.is_open.store(true, Ordering::Release);
                shared.changed.notify_all();
            }
            Err(error) => {
                let text = error.to_string();
                let mut state = shared.lock();
                if state.last_error.as_ref() != Some(&text) {
                    tracing::warn!("no session: {text}");
                    state.last_error = Some(text);
                }
                sleep(shared, state, pauses.next());
            }
        }
    }
}

/// A number that no other client draws.
fn chance() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// Growing pauses, each between a half and all of its step, so that engines do not come in step.
struct Pauses {
    step: Duration,
    chance: u64,
}

impl Pauses {
    fn new(chance: u64) -> Self {
        Self { step: FIRST_PAUSE, chance }
    }

    fn start_over(&mut self) {
        self.step = FIRST_PAUSE;
    }

    fn next(&mut self) -> Duration {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = 0.5 + (self.chance >> 33) as f64 / (1u64 << 32) as f64;
        let pause = self.step.mul_f64(share);
        self.step = (self.step * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// Waits until a session is wanted. False: never again.
fn is_wanted(shared: &Shared) -> bool {
    let mut state = shared.lock();
    loop {
        if shared.stop.load(Ordering::Relaxed) {
            return false;
        }
        if state.wanted {
            return true;
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

fn sleep(shared: &Shared, mut state: MutexGuard<'_, State>, pause: Duration) {
    let deadline = Instant::now() + pause;
    while !shared.stop.load(Ordering::Relaxed) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
