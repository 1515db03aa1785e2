//! Lookups in two halves, for engines that decide elsewhere which of the answers matter: `locate` says where each key is and takes
//! readers on what is there, `wait_for` brings what the engine then says it waits for, `begin_load` turns readers into a load.

use std::ops::ControlFlow;

use terrace_primary::{BlockState, Key, KeyBytes, SlotId};

use crate::classify::{Class, KEYS_AT_ONCE, Scope};
use crate::error::TieringError;
use crate::lookup::{Lookup, Shortage};
use crate::manager::{Shares, TieringOffloadingManager};
use crate::request::RequestId;

/// Keys of a resident prefix that are found before readers are taken on their blocks.
const RESIDENT_AT_ONCE: usize = 256;

/// Where a key was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// Readable in the primary. `origin` 0: an engine stored it; `t + 1`: tier `t` brought it and it was not loaded since.
    Hit {
        /// Where.
        slot: SlotId,
        /// Who brought it.
        origin: u8,
    },
    /// On its way to the primary.
    Pending,
    /// Readable in this tier.
    Found {
        /// Its index.
        tier: u8,
    },
    /// Not known yet: ask again in a later step.
    Retry,
    /// Not to be had.
    Miss,
}

/// What `locate` may take.
#[derive(Clone, Copy, Debug)]
pub struct ReaderBudget {
    /// Readers that may still be taken; counts down.
    pub left: u32,
    /// Whether others of the same owner end soon: what is there and finds no reader left is then a `Retry`, for as long as the request may
    /// wait, else a `Miss`.
    pub frees_soon: bool,
}

/// How far `locate` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Up to the first miss.
    Prefix,
    /// All keys.
    Each,
}

impl TieringOffloadingManager {
    /// Says where each of `keys` is, without bringing anything, and appends the answers to `out`: one for each key, or with [`Scan::Prefix`] up to
    /// and with the first `Miss`. The first call of a step polls the tiers and ends the request's holds.
    ///
    /// `readers`: takes one reader on each `Hit`, to be ended by `complete_load` or `end_leases`, within this budget. `None`: takes none, and a `Hit` may
    /// be gone by the next call.
    pub fn locate<K: KeyBytes>(
        &mut self,
        id: RequestId,
        keys: &[K],
        scan: Scan,
        mut readers: Option<&mut ReaderBudget>,
        out: &mut Vec<Located>,
    ) -> Result<(), TieringError> {
        self.check_call(id, keys.len())?;
        let start = self.now();
        self.poll_once();
        let Some(waiting) = self.start_lookup(id, keys.len()) else { return Err(TieringError::UnknownRequest(id)) };
        self.counts.lookups += 1;
        self.counts.keys_looked_up += keys.len() as u64;
        let first = out.len();
        if self.resetting {
            out.extend(keys.iter().take(1).map(|_| Located::Miss));
        } else {
            let scope = self.scope(id, waiting);
            let mut classes = std::mem::take(&mut self.scratch.classes);
            // What lies in the primary from the first key on is found in long runs, and mostly that is all. A run's rows are still in
            // the first cache when readers are taken on them.
            let (mut rest, mut goes_on) = (keys, true);
            for run in keys.chunks(RESIDENT_AT_ONCE) {
                classes.clear();
                self.primary.find_batch(run, |_, found| match found {
                    Some((slot, BlockState::Ready { .. })) => {
                        classes.push(Class::Ready(slot));
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                });
                self.check_ready(&mut classes, scope);
                goes_on = self.answer_located(&classes, scan, scope, readers.as_deref_mut(), out);
                rest = &rest[classes.len()..];
                if !goes_on || classes.len() < run.len() {
                    break;
                }
            }
            for keys in rest.chunks(KEYS_AT_ONCE) {
                if !goes_on {
                    break;
                }
                let mut chunk = std::mem::take(&mut self.scratch.located);
                chunk.clear();
                chunk.extend(keys.iter().map(K::to_key));
                classes.clear();
                classes.resize(chunk.len(), Class::Absent);
                self.classify(&chunk, &mut classes, scope);
                self.scratch.located = chunk;
                goes_on = self.answer_located(&classes, scan, scope, readers.as_deref_mut(), out);
            }
            self.scratch.classes = classes;
        }
        if scan == Scan::Each {
            out.resize(first + keys.len(), Located::Miss);
        }
        self.count_located(&out[first..], keys.len());
        self.times.lookup.record(self.now().since(start));
        Ok(())
    }

    /// Appends the answers to keys of these classes. False: the scan ends.
    fn answer_located(
        &mut self,
        classes: &[Class],
        scan: Scan,
        scope: Scope,
        mut readers: Option<&mut ReaderBudget>,
        out: &mut Vec<Located>,
    ) -> bool {
        out.reserve(classes.len());
        for class in classes {
            let located = self.located(*class, scope, readers.as_deref_mut());
            out.push(located);
            if located == Located::Miss && scan == Scan::Prefix {
                return false;
            }
        }
        true
    }

    fn located(&mut self, class: Class, scope: Scope, readers: Option<&mut ReaderBudget>) -> Located {
        match class {
            Class::Ready(slot) => {
                let hit = Located::Hit { slot, origin: self.primary.origin(slot) };
                let Some(budget) = readers else { return hit };
                if budget.left == 0 || !self.primary.acquire(slot) {
                    self.counts.leases_refused += 1;
                    return if budget.frees_soon && scope.below { Located::Retry } else { Located::Miss };
                }
                budget.left -= 1;
                self.loading.add(slot);
                hit
            }
            Class::Writing => Located::Pending,
            Class::Tier(tier) => Located::Found { tier },
            Class::Unknown => Located::Retry,
            Class::Absent => Located::Miss,
        }
    }

    fn count_located(&mut self, answers: &[Located], keys: usize) {
        for answer in answers {
            match answer {
                Located::Hit { .. } => self.counts.hits += 1,
                Located::Pending | Located::Found { .. } => self.counts.pending += 1,
                Located::Retry => self.counts.retries += 1,
                Located::Miss => self.counts.misses += 1,
            }
        }
        self.counts.misses += (keys - answers.len()) as u64;
    }

    /// A request waits for `keys`, which `locate` found: what lies in a tier is brought as far as there is room, the leading keys first, and what is there
    /// is held for it, as by `lookup`. Where other requests have taken the room that this one's blocks would fit into, or a growing primary does not have it
    /// yet, they are `Retry` and nothing is brought or held yet. `out` gets one answer for each key; `Miss`: it will not come. The request's
    /// wait begins, and ends `deadlines.lookup` later with misses.
    pub fn wait_for(&mut self, id: RequestId, keys: &[Key], out: &mut Vec<Lookup>) -> Result<(), TieringError> {
        self.check_call(id, keys.len())?;
        out.clear();
        if self.resetting {
            out.resize(keys.len(), Lookup::Miss);
            return Ok(());
        }
        let waiting = self.requests.get(&id).is_some_and(|request| request.waiting_since.is_some());
        let counted = (self.counts.hits, self.counts.pending, self.counts.retries, self.counts.misses);
        let mut classes = std::mem::take(&mut self.scratch.classes);
        classes.clear();
        let scope = self.scope(id, waiting);
        classes.resize(keys.len(), Class::Absent);
        for (keys, classes) in keys.chunks(KEYS_AT_ONCE).zip(classes.chunks_mut(KEYS_AT_ONCE)) {
            self.classify(keys, classes, scope);
        }
        let wanted = classes.iter().filter(|class| matches!(class, Class::Tier(_))).count();
        if self.stands_in_line(wanted, scope) {
            self.counts.promotions_deferred += wanted as u64;
            out.extend(classes.iter().map(|class| match class {
                Class::Ready(_) => Lookup::Hit,
                Class::Writing => Lookup::Pending,
                Class::Tier(_) | Class::Unknown => Lookup::Retry,
                Class::Absent => Lookup::Miss,
            }));
        } else {
            self.answer(id, keys, &classes, 0..keys.len(), Shortage::PromoteLeading, scope, out);
        }
        // Also if all of it has landed since `locate`: the request will not see that before its next lookup, and is held for until then.
        let now = self.now();
        if let Some(request) = self.requests.get_mut(&id) {
            request.unresolved = true;
            request.waiting_since.get_or_insert(now);
        }
        if !out.iter().any(|answer| answer.is_unresolved()) {
            for (class, answer) in classes.iter().zip(out.iter()) {
                if let (Class::Ready(slot), Lookup::Hit) = (class, answer) {
                    self.hold(id, *slot, now);
                }
            }
        }
        self.scratch.classes = classes;
        // `locate` has counted these keys.
        (self.counts.hits, self.counts.pending, self.counts.retries, self.counts.misses) = counted;
        Ok(())
    }

    /// Whether a request should wait for room that others' promotions and holds have taken, for they end soon, or that a growing primary does not have
    /// yet. All of its blocks come then, or none: two requests with half of theirs each would wait for one another.
    fn stands_in_line(&self, wanted: usize, scope: Scope) -> bool {
        if !scope.below {
            return false;
        }
        let room = self.promotion_room();
        if self.is_growing(scope.now) {
            let room = room.min((self.primary.free() + self.primary.evictable()) as usize);
            let share = Shares::of(&self.limits, self.primary.blocks()).promotion as usize;
            return wanted > room && (wanted <= share || room == 0);
        }
        wanted > room && wanted <= self.shares.promotion as usize && self.promotion_use() > 0
    }

    /// Ends one reader on each of `slots` that `locate` took and no load needs: as `complete_load`, by slot. What is not being loaded is
    /// skipped and counted.
    pub fn end_leases(&mut self, slots: &[SlotId]) {
        for slot in slots {
            if !self.end_load(*slot) {
                self.counts.completions_refused += 1;
            }
        }
        self.continue_reset();
    }

    /// A load of `keys` begins, on each of which `locate` has taken a reader for it: as `prepare_load`, less the readers. Keys without one
    /// are an error, and nothing is done.
    pub fn begin_load(&mut self, id: RequestId, keys: &[Key]) -> Result<(), TieringError> {
        self.check_open()?;
        let mut slots = std::mem::take(&mut self.scratch.slots);
        slots.clear();
        let mut failed = None;
        self.primary.find_batch(keys, |at, found| match found {
            Some((slot, BlockState::Ready { .. })) if self.loading.contains(slot) => {
                slots.push(slot);
                ControlFlow::Continue(())
            }
            _ => {
                failed = Some(TieringError::NotLoading { key: keys[at] });
                ControlFlow::Break(())
            }
        });
        if failed.is_none() {
            self.load_begins(id, &slots);
        }
        self.scratch.slots = slots;
        failed.map_or(Ok(()), Err)
    }
}
