//! Lookups: what can be had, and what is worth waiting for.
//!
//! Three phases: classify (no side effects), decide by [`LookupMode`] which keys matter, then reserve slots for those that lie in
//! a tier. A prefix that is all resident ends in the first: one pass over the block table.

use std::ops::{ControlFlow, Range};

use terrace_primary::{BlockState, Key};

use crate::classify::{Class, KEYS_AT_ONCE, Scope};
use crate::error::TieringError;
use crate::manager::TieringOffloadingManager;
use crate::request::RequestId;

/// The answer for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Readable in the primary now.
    Hit,
    /// Found, and on its way to the primary: ask again in a later step.
    Pending,
    /// Not known yet: ask again in a later step.
    Retry,
    /// Not to be had: compute it.
    Miss,
}

impl Lookup {
    /// Whether a later lookup may say something else without anything new being stored.
    pub const fn is_unresolved(self) -> bool {
        matches!(self, Self::Pending | Self::Retry)
    }
}

/// How the answers will be used, which says which keys matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// Only the run from the first key on counts (full attention): from the first `Miss` on all is `Miss`, and nothing behind it is
    /// promoted.
    Prefix,
    /// Only the last run of `window` found blocks counts (sliding window), or a shorter one that reaches the first key. What is
    /// outside of it is `Miss` and not promoted. A window of 0 is 1.
    Suffix {
        /// Blocks in the window.
        window: u32,
    },
    /// Each key counts for itself.
    Each,
}

/// What to do when not all blocks that lie in a tier can be promoted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The leading ones are; the first that is not ends the prefix.
    EndPrefix,
    /// None is: a part of a window is of no use.
    PromoteNone,
    /// The leading ones are, the others are `Miss`.
    PromoteLeading,
}

impl TieringOffloadingManager {
    /// Looks `keys` up for an open request; `out` gets one answer for each. The first lookup of a step polls the tiers.
    ///
    /// `Pending` and `Retry` are answered for `deadlines.lookup` at most, counted from the request's first such answer since its last
    /// step in which all its lookups were resolved; after that they are `Miss`. While an answer is unresolved the request's `Hit`
    /// blocks, and its promoted blocks as they land, are held for it until its first lookup in a later step, `prepare_load`, `finish_request`
    /// or `deadlines.hold`, as far as `limits.promotion_share` goes.
    pub fn lookup(
        &mut self,
        id: RequestId,
        keys: &[Key],
        mode: LookupMode,
        out: &mut Vec<Lookup>,
    ) -> Result<(), TieringError> {
        self.check_call(id, keys.len())?;
        let start = self.now();
        self.poll_once();
        out.clear();
        let Some(waiting) = self.start_lookup(id, keys.len()) else { return Err(TieringError::UnknownRequest(id)) };
        self.counts.lookups += 1;
        self.counts.keys_looked_up += keys.len() as u64;
        if self.resetting {
            out.resize(keys.len(), Lookup::Miss);
            self.counts.misses += keys.len() as u64;
            return Ok(());
        }
        let mut classes = std::mem::take(&mut self.scratch.classes);
        classes.clear();
        match mode {
            LookupMode::Prefix => self.lookup_prefix(id, keys, waiting, &mut classes, out),
            LookupMode::Suffix { window } => self.lookup_suffix(id, keys, window, waiting, &mut classes, out),
            LookupMode::Each => self.lookup_each(id, keys, waiting, &mut classes, out),
        }
        self.scratch.classes = classes;
        self.times.lookup.record(self.now().since(start));
        Ok(())
    }

    /// Ends the holds of earlier steps, and says whether the request waits for something.
    pub(crate) fn start_lookup(&mut self, id: RequestId, keys: usize) -> Option<bool> {
        let step = self.step;
        self.start_dram_check();
        let request = self.requests.get_mut(&id)?;
        request.summary.keys_looked_up += keys as u64;
        if request.lookup_step != step {
            if !request.unresolved {
                request.waiting_since = None;
            }
            request.unresolved = false;
            request.lookup_step = step;
            if !request.holds.is_empty() {
                self.release_holds(id);
            }
        }
        Some(self.requests.get(&id)?.waiting_since.is_some())
    }

    fn lookup_prefix(
        &mut self,
        id: RequestId,
        keys: &[Key],
        waiting: bool,
        classes: &mut Vec<Class>,
        out: &mut Vec<Lookup>,
    ) {
        self.primary.find_batch(keys, |_, found| match found {
            Some((slot, BlockState::Ready { .. })) => {
                classes.push(Class::Ready(slot));
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        });
        let hits = classes.len();
        if hits == keys.len() && self.dram.is_none() {
            out.resize(hits, Lookup::Hit);
            self.counts.hits += hits as u64;
            return;
        }
        let scope = self.scope(id, waiting);
        self.check_ready(classes, scope);
        let absent = classes.iter().position(|class| *class == Class::Absent);
        let mut end = absent.unwrap_or(hits);
        'scan: while absent.is_none() && end < keys.len() {
            let until = keys.len().min(end + KEYS_AT_ONCE);
            classes.resize(until, Class::Absent);
            self.classify(&keys[end..until], &mut classes[end..until], scope);
            for class in &classes[end..until] {
                if *class == Class::Absent {
                    break 'scan;
                }
                end += 1;
            }
        }
        self.answer(id, keys, classes, 0..end, Shortage::EndPrefix, scope, out);
    }

    fn lookup_suffix(
        &mut self,
        id: RequestId,
        keys: &[Key],
        window: u32,
        waiting: bool,
        classes: &mut Vec<Class>,
        out: &mut Vec<Lookup>,
    ) {
        let window = window.max(1) as usize;
        let scope = self.scope(id, waiting);
        classes.resize(keys.len(), Class::Absent);
        let mut run = 0..0;
        let mut start = keys.len();
        'scan: while start > 0 {
            let until = start;
            start = start.saturating_sub(KEYS_AT_ONCE);
            self.classify(&keys[start..until], &mut classes[start..until], scope);
            for at in (start..until).rev() {
                if classes[at] == Class::Absent {
                    run = 0..0;
                    continue;
                }
                run = if run.is_empty() { at..at + 1 } else { at..run.end };
                if run.len() == window {
                    break 'scan;
                }
            }
        }
        self.answer(id, keys, classes, run, Shortage::PromoteNone, scope, out);
    }

    fn lookup_each(
        &mut self,
        id: RequestId,
        keys: &[Key],
        waiting: bool,
        classes: &mut Vec<Class>,
        out: &mut Vec<Lookup>,
    ) {
        let scope = self.scope(id, waiting);
        classes.resize(keys.len(), Class::Absent);
        for (keys, classes) in keys.chunks(KEYS_AT_ONCE).zip(classes.chunks_mut(KEYS_AT_ONCE)) {
            self.classify(keys, classes, scope);
        }
        self.answer(id, keys, classes, 0..keys.len(), Shortage::PromoteLeading, scope, out);
    }

    /// Whom to ask: nobody but the primary once the request has waited for `deadlines.lookup`.
    pub(crate) fn scope(&mut self, id: RequestId, waiting: bool) -> Scope {
        let now = self.now();
        let request = self.requests.get(&id);
        let filter = request.map(|request| request.tiers).unwrap_or_default();
        let since = if waiting { request.and_then(|request| request.waiting_since) } else { None };
        let below = since.is_none_or(|since| now < since.plus(self.deadlines.lookup));
        self.counts.lookups_expired += u64::from(!below);
        Scope { filter, now, below }
    }

    /// Answers: `Miss` outside of `run`; inside, what lies in a tier is promoted as far as there is room.
    #[allow(clippy::too_many_arguments, reason = "the parts of one lookup, each already decided")]
    pub(crate) fn answer(
        &mut self,
        id: RequestId,
        keys: &[Key],
        classes: &[Class],
        run: Range<usize>,
        shortage: Shortage,
        scope: Scope,
        out: &mut Vec<Lookup>,
    ) {
        let wanted = classes[run.clone()].iter().filter(|class| matches!(class, Class::Tier(_))).count();
        let mut room = 0;
        if wanted > 0 {
            room = self.room_for_promotions(wanted, shortage == Shortage::PromoteNone, &classes[run.clone()]);
            self.counts.promotions_refused += (wanted - room) as u64;
        }
        out.resize(run.start, Lookup::Miss);
        for at in run {
            out.push(match classes[at] {
                Class::Ready(_) => Lookup::Hit,
                Class::Writing => Lookup::Pending,
                Class::Unknown => Lookup::Retry,
                Class::Absent => Lookup::Miss,
                Class::Tier(tier) if room > 0 => {
                    room -= 1;
                    self.reserve_promotion(id, &keys[at], usize::from(tier), scope.now)
                }
                Class::Tier(_) if shortage == Shortage::EndPrefix => break,
                Class::Tier(_) => Lookup::Miss,
            });
        }
        out.resize(keys.len(), Lookup::Miss);
        self.settle(id, classes, scope, out);
    }

    /// Counts the answers, and if some are unresolved starts the request's wait and holds its hits.
    fn settle(&mut self, id: RequestId, classes: &[Class], scope: Scope, out: &[Lookup]) {
        let mut counts = [0u64; 4];
        for answer in out {
            counts[*answer as usize] += 1;
        }
        let [hits, pending, retries, misses] = counts;
        self.counts.hits += hits;
        self.counts.pending += pending;
        self.counts.retries += retries;
        self.counts.misses += misses;
        if pending + retries == 0 {
            return;
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.unresolved = true;
            request.waiting_since.get_or_insert(scope.now);
            request.summary.unresolved_lookups = request.summary.unresolved_lookups.saturating_add(1);
        }
        for (class, answer) in classes.iter().zip(out) {
            if let (Class::Ready(slot), Lookup::Hit) = (class, answer) {
                self.hold(id, *slot, scope.now);
            }
        }
    }
}
