//! How many requests are in flight at once, and whose turn it is.
//!
//! The number adapts (additive increase, multiplicative decrease): it is halved when the store tells to slow down or does not
//! answer, and grows by one for as many good answers as there are places. Who waits is served by class: loads, then what keeps
//! the node in step with the cluster, then stores; but one of [`TURNS`] places goes to the lowest class that waits, so that nobody
//! waits for ever. While others have requests or wait, stores hold at most three quarters of the places: a load that comes finds
//! one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::counters::Counters;
use crate::clock::{Clock, Time};

/// One of so many places is given to the lowest class that waits.
const TURNS: u32 = 8;
/// Several answers that tell to slow down within this time count as one.
const HALVE_AGAIN: Duration = Duration::from_millis(100);

/// Who sends a request. The order is the order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A request of an engine waits for it.
    Load,
    /// Listings, the log, leases: what keeps the node in step.
    Sync,
    /// Segments on their way up.
    Store,
}

const CLASSES: [Class; 3] = [Class::Load, Class::Sync, Class::Store];

/// Places for requests. Shared by all that send; a place is given back when its [`Permit`] is dropped.
pub(crate) struct Limiter {
    state: Mutex<State>,
    most: u32,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
}

struct State {
    /// Places there are now, 1.0 to `most`.
    limit: f64,
    in_flight: [u32; 3],
    /// Those that wait, by the order they came in. Bounded by the futures of the callers: one that is dropped takes itself out.
    waiting: [BTreeMap<u64, oneshot::Sender<Permit>>; 3],
    next_ticket: u64,
    halved: Option<Time>,
    /// Places given while a lower class waited.
    passed_over: u32,
}

impl State {
    fn total(&self) -> u32 {
        self.in_flight.iter().sum()
    }

    fn places(&self) -> u32 {
        (self.limit as u32).max(1)
    }

    fn waits(&self, class: Class) -> bool {
        self.waiting.get(class as usize).is_some_and(|queue| !queue.is_empty())
    }

    fn count(&self, class: Class) -> u32 {
        self.in_flight.get(class as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, class: Class) {
        if let Some(count) = self.in_flight.get_mut(class as usize) {
            *count += 1;
        }
    }

    fn take(&mut self, class: Class) {
        if let Some(count) = self.in_flight.get_mut(class as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether this class may have one more place, if there is one.
    fn may(&self, class: Class) -> bool {
        if class != Class::Store {
            return true;
        }
        let others = [Class::Load, Class::Sync].into_iter().any(|other| self.count(other) > 0 || self.waits(other));
        !others || self.count(Class::Store) < (self.places() * 3 / 4).max(1)
    }

    /// Whose turn it is.
    fn next(&self) -> Option<Class> {
        let served = |class: &Class| self.waits(*class) && self.may(*class);
        if self.passed_over >= TURNS - 1 {
            return CLASSES.into_iter().rev().find(served);
        }
        CLASSES.into_iter().find(served)
    }
}

impl Limiter {
    /// A limiter that begins with all its places.
    pub fn new(most: u32, clock: Arc<dyn Clock>, counters: Arc<Counters>) -> Self {
        let most = most.max(1);
        counters.concurrency.set(u64::from(most));
        let state = State {
            limit: f64::from(most),
            in_flight: [0; 3],
            waiting: Default::default(),
            next_ticket: 0,
            halved: None,
            passed_over: 0,
        };
        Self { state: Mutex::new(state), most, clock, counters }
    }

    /// A place, when it is this caller's turn. Dropping the future gives the turn up. `None`: the limiter is gone.
    pub async fn acquire(self: &Arc<Self>, class: Class) -> Option<Permit> {
        let (ticket, turn) = {
            let mut state = self.lock();
            let nobody_waits = state.waiting.iter().all(BTreeMap::is_empty);
            if nobody_waits && state.total() < state.places() && state.may(class) {
                return Some(self.give(&mut state, class));
            }
            let (sender, turn) = oneshot::channel();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            if let Some(queue) = state.waiting.get_mut(class as usize) {
                queue.insert(ticket, sender);
            }
            // A class that may not have the free place does not keep it from this one.
            self.serve(&mut state);
            (ticket, turn)
        };
        let _leave = Leave { limiter: self, class, ticket };
        turn.await.ok()
    }

    /// A place if there is one and nobody waits for it.
    pub fn try_acquire(self: &Arc<Self>, class: Class) -> Option<Permit> {
        let mut state = self.lock();
        let free = state.waiting.iter().all(BTreeMap::is_empty) && state.total() < state.places() && state.may(class);
        free.then(|| self.give(&mut state, class))
    }

    /// The store told to slow down, or did not answer: half the places, at most once per [`HALVE_AGAIN`].
    pub fn slow_down(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.halved.is_some_and(|halved| now.since(halved) < HALVE_AGAIN) {
            return;
        }
        state.halved = Some(now);
        state.limit = (state.limit / 2.0).max(1.0);
        self.counters.concurrency.set(u64::from(state.places()));
    }

    /// A good answer.
    fn grow(&self, state: &mut State) {
        if state.limit < f64::from(self.most) {
            state.limit = (state.limit + 1.0 / state.limit).min(f64::from(self.most));
            self.counters.concurrency.set(u64::from(state.places()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(self: &Arc<Self>, state: &mut State, class: Class) -> Permit {
        state.add(class);
        self.counters.in_flight.set(u64::from(state.total()));
        Permit { limiter: Some(Arc::clone(self)), class }
    }

    /// Gives free places to those whose turn it is.
    fn serve(self: &Arc<Self>, state: &mut State) {
        while state.total() < state.places() {
            let Some(class) = state.next() else { return };
            let Some((_, sender)) = state.waiting.get_mut(class as usize).and_then(BTreeMap::pop_first) else { return };
            let lower_waits = CLASSES.into_iter().any(|other| other > class && state.waits(other));
            state.passed_over = if lower_waits { state.passed_over.saturating_add(1) } else { 0 };
            let permit = self.give(state, class);
            if let Err(mut unwanted) = sender.send(permit) {
                // Whoever waited is gone. Not dropped armed: that would lock again.
                unwanted.limiter = None;
                state.take(class);
            }
        }
    }
}

/// Takes a waiter out of its queue, if it is still there.
struct Leave<'a> {
    limiter: &'a Arc<Limiter>,
    class: Class,
    ticket: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        let removed = state.waiting.get_mut(self.class as usize).and_then(|queue| queue.remove(&self.ticket));
        if removed.is_some() {
            // It may have kept stores to their share.
            self.limiter.serve(&mut state);
        }
    }
}

/// A place for one request.
pub(crate) struct Permit {
    limiter: Option<Arc<Limiter>>,
    class: Class,
}

impl Permit {
    /// Gives the place back after a good answer.
    pub fn good(self) {
        if let Some(limiter) = &self.limiter {
            limiter.grow(&mut limiter.lock());
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(limiter) = self.limiter.take() else { return };
        let mut state = limiter.lock();
        state.take(self.class);
        limiter.serve(&mut state);
        limiter.counters.in_flight.set(u64::from(state.total()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    fn limiter(most: u32) -> (Arc<Limiter>, ManualClock, Arc<Counters>) {
        let clock = ManualClock::default();
        let counters = Arc::new(Counters::default());
        (Arc::new(Limiter::new(most, Arc::new(clock.clone()), Arc::clone(&counters))), clock, counters)
    }

    fn wait(limiter: &Arc<Limiter>, class: Class) -> BoxFuture<'static, Option<Permit>> {
        let limiter = Arc::clone(limiter);
        let mut future = async move { limiter.acquire(class).await }.boxed();
        assert!(future.as_mut().now_or_never().is_none(), "nothing is free");
        future
    }

    fn got(future: &mut BoxFuture<'static, Option<Permit>>) -> Option<Permit> {
        future.as_mut().now_or_never().flatten()
    }

    #[test]
    fn a_load_overtakes_stores_that_wait() {
        let (limiter, ..) = limiter(1);
        let held = limiter.try_acquire(Class::Store).expect("free");
        let mut store = wait(&limiter, Class::Store);
        let mut sync = wait(&limiter, Class::Sync);
        let mut load = wait(&limiter, Class::Load);
        drop(held);
        let permit = got(&mut load).expect("first");
        assert!(got(&mut sync).is_none());
        drop(permit);
        let permit = got(&mut sync).expect("second");
        assert!(got(&mut store).is_none());
        drop(permit);
        assert!(got(&mut store).is_some());
    }

    #[test]
    fn the_lowest_class_gets_one_of_eight_turns() {
        let (limiter, ..) = limiter(1);
        let mut held = limiter.try_acquire(Class::Load);
        let mut store = wait(&limiter, Class::Store);
        let mut served = 0;
        for mut load in (0..20).map(|_| wait(&limiter, Class::Load)).collect::<Vec<_>>() {
            drop(held.take());
            held = got(&mut store);
            if held.is_some() {
                break;
            }
            held = got(&mut load);
            assert!(held.is_some(), "its turn");
            served += 1;
        }
        assert_eq!(served, TURNS - 1);
    }

    #[test]
    fn stores_leave_a_quarter_while_others_are_there() {
        let (limiter, ..) = limiter(8);
        let stores: Vec<_> = (0..8).map(|_| limiter.try_acquire(Class::Store).expect("all are theirs")).collect();
        drop(stores);
        let load = limiter.try_acquire(Class::Load).expect("free");
        let stores: Vec<_> = std::iter::from_fn(|| limiter.try_acquire(Class::Store)).collect();
        assert_eq!(stores.len(), 6);
        // One that waits for its share does not keep loads from theirs.
        let mut store = wait(&limiter, Class::Store);
        let second = limiter.acquire(Class::Load).now_or_never().flatten().expect("a place is left");
        assert!(got(&mut store).is_none());
        drop((load, second));
        assert!(got(&mut store).is_some(), "nobody else is there any more");
    }

    #[test]
    fn halves_once_in_a_while_and_grows_back() {
        let (limiter, clock, counters) = limiter(32);
        limiter.slow_down();
        limiter.slow_down();
        assert_eq!(counters.concurrency.get(), 16);
        clock.advance(HALVE_AGAIN);
        for _ in 0..10 {
            limiter.slow_down();
            clock.advance(HALVE_AGAIN);
        }
        assert_eq!(counters.concurrency.get(), 1);
        let permit = limiter.try_acquire(Class::Load).expect("one is always there");
        assert!(limiter.try_acquire(Class::Load).is_none());
        permit.good();
        assert_eq!(counters.concurrency.get(), 2);
        for _ in 0..32 * 32 {
            limiter.try_acquire(Class::Load).expect("free").good();
        }
        assert_eq!(counters.concurrency.get(), 32);
        assert_eq!(counters.in_flight.get(), 0);
    }

    proptest::proptest! {
        /// Whatever is asked, dropped, given back, halved: never more in flight than places when they were given, nothing is lost.
        #[test]
        fn never_more_than_the_limit(steps in proptest::collection::vec((0u8..6, 0usize..32), 1..200)) {
            let (limiter, clock, counters) = limiter(4);
            let mut waiting: Vec<BoxFuture<'static, Option<Permit>>> = Vec::new();
            let mut held = Vec::new();
            for (what, which) in steps {
                match what {
                    0..=2 => {
                        let class = CLASSES[usize::from(what)];
                        let shared = Arc::clone(&limiter);
                        waiting.push(async move { shared.acquire(class).await }.boxed());
                    }
                    3 if which < waiting.len() => drop(waiting.swap_remove(which)),
                    4 if which < held.len() => {
                        let permit: Permit = held.swap_remove(which);
                        if which % 2 == 0 { permit.good() } else { drop(permit) }
                    }
                    5 => { clock.advance(HALVE_AGAIN); limiter.slow_down(); }
                    _ => {}
                }
                waiting.retain_mut(|future| match future.as_mut().now_or_never() {
                    Some(permit) => { held.extend(permit); false }
                    None => true,
                });
                proptest::prop_assert!(held.len() <= 4);
                proptest::prop_assert_eq!(counters.in_flight.get(), held.len() as u64);
                // A free place and somebody who waits: only stores may have to.
                let state = limiter.lock();
                if state.total() < state.places() {
                    proptest::prop_assert!(!state.waits(Class::Load) && !state.waits(Class::Sync));
                }
            }
            held.clear();
            while !waiting.is_empty() {
                let before = waiting.len();
                waiting.retain_mut(|future| future.as_mut().now_or_never().is_none());
                proptest::prop_assert!(waiting.len() < before, "somebody is forgotten");
            }
            proptest::prop_assert_eq!(counters.in_flight.get(), 0);
        }
    }
}
