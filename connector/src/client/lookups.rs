//! What the daemon answered to a request's lookup, and what the scheduler's search makes of it.

use std::collections::HashSet;
use std::ops::Range;

use terrace_primary::{Key, SlotId};
use terrace_tiering::{Lookup, LookupMode};
use terrace_tiers::Time;

use crate::api::JobId;
use crate::port::PortQuery;
use crate::protocol::{Answer, LookupReply, is_answer, is_hit};

/// What is known of a request's blocks.
#[derive(Debug, Default)]
pub(super) enum Known {
    /// Nothing: all is a miss.
    #[default]
    Nothing,
    /// Nothing yet, since then: the daemon is late.
    NotYet(Time),
    /// The daemon's answers.
    Answered(Box<Answered>),
}

/// The answers to one lookup.
#[derive(Debug)]
pub(super) struct Answered {
    pub at: Time,
    pub lease: u64,
    /// Of answers from the daemon's block table, which are not leased yet: its last change then.
    pub seen: Option<u64>,
    /// Whether the lease is still held: until the end of the step.
    pub open: bool,
    /// Whether a search met a block that is not readable yet.
    pub unresolved: bool,
    /// The load that starts from the lease, with the places of its keys.
    pub load: Option<(JobId, Vec<u32>)>,
    queries: Vec<AnsweredQuery>,
    /// Slots of all hits, in order, as they came.
    slots: Vec<u8>,
}

#[derive(Debug)]
struct AnsweredQuery {
    keys: Vec<Key>,
    /// One [`Answer`] for each leading key, as they came; the other keys are misses.
    answers: Vec<u8>,
    /// Place of the first key among the keys of the lookup.
    first: u32,
    /// Place of the first hit among the hits of the lookup.
    first_slot: usize,
    /// What searches found and wait for.
    awaited: Vec<Range<usize>>,
}

impl Answered {
    /// From a reply to `queries` that came now, `at`. `Err`: what is wrong with it.
    pub fn new(
        queries: Vec<PortQuery>,
        reply: LookupReply,
        slots_in_region: u32,
        at: Time,
    ) -> Result<Self, &'static str> {
        let LookupReply { lease, mut answers, slots } = reply;
        let (numbers, rest) = slots.as_chunks::<4>();
        if !rest.is_empty() {
            return Err("slots that are no numbers");
        }
        // Without an early end these run over several at once.
        let highest = numbers.iter().fold(0, |highest, slot| u32::from_le_bytes(*slot).max(highest));
        if !numbers.is_empty() && highest >= slots_in_region {
            return Err("a slot beyond the region");
        }
        if !answers.iter().fold(true, |all, byte| all & is_answer(*byte)) {
            return Err("an answer that is none");
        }
        let mut answered = Vec::with_capacity(queries.len());
        let (mut first, mut first_slot) = (0u32, 0);
        let most = queries.len();
        for (at, PortQuery { prefix_only, keys }) in queries.into_iter().enumerate() {
            let miss = Answer::Miss.to_byte();
            let end = if prefix_only { answers.iter().take(keys.len()).position(|byte| *byte == miss) } else { None };
            let count = end.map_or(keys.len(), |end| end + 1);
            if count > answers.len() {
                return Err("fewer answers than keys");
            }
            let later = if at + 1 == most && count == answers.len() { Vec::new() } else { answers.split_off(count) };
            let ours = std::mem::replace(&mut answers, later);
            let hits = ours.iter().filter(|byte| is_hit(**byte)).count();
            let keys_here = u32::try_from(keys.len()).map_err(|_| "too many keys")?;
            answered.push(AnsweredQuery { keys, answers: ours, first, first_slot, awaited: Vec::new() });
            first = first.saturating_add(keys_here);
            first_slot += hits;
        }
        if !answers.is_empty() || numbers.len() > first_slot {
            return Err("more answers than keys, or more slots than hits");
        }
        if numbers.len() < first_slot {
            return Err("fewer slots than hits");
        }
        if lease == 0 && !slots.is_empty() {
            return Err("hits without a lease");
        }
        Ok(Self { at, lease, seen: None, open: lease != 0, unresolved: false, load: None, queries: answered, slots })
    }

    /// Of keys that were all found in the daemon's block table, in `slots` (little-endian numbers), after change `seen`.
    pub fn found(queries: Vec<PortQuery>, mut answers: Vec<u8>, slots: Vec<u8>, seen: u64, at: Time) -> Self {
        let mut answered = Vec::with_capacity(queries.len());
        let mut first = 0;
        for PortQuery { keys, .. } in queries {
            let count = keys.len();
            let later = answers.split_off(count.min(answers.len()));
            let ours = std::mem::replace(&mut answers, later);
            answered.push(AnsweredQuery {
                keys,
                answers: ours,
                first: first as u32,
                first_slot: first,
                awaited: Vec::new(),
            });
            first += count;
        }
        Self { at, lease: 0, seen: Some(seen), open: true, unresolved: false, load: None, queries: answered, slots }
    }

    /// Whether `queries` ask what was asked.
    pub fn answers(&self, queries: &[PortQuery]) -> bool {
        self.queries.len() == queries.len()
            && self.queries.iter().zip(queries).all(|(ours, theirs)| {
                ours.keys.len() == theirs.keys.len()
                    && ours.keys.first() == theirs.keys.first()
                    && ours.keys.last() == theirs.keys.last()
            })
    }

    /// Answers a search among the first `len` keys of a group. What is in a tier and in `refused` will not be brought:
    /// a miss.
    pub fn lookup(
        &mut self,
        group: usize,
        len: usize,
        mode: LookupMode,
        refused: &HashSet<Key>,
        out: &mut Vec<Lookup>,
    ) {
        out.clear();
        let Some(query) = self.queries.get_mut(group) else { return out.resize(len, Lookup::Miss) };
        let run = query.run(len, mode, refused);
        let hits = if run.start == 0 { query.leading_hits(run.end) } else { 0 };
        out.resize(hits, Lookup::Hit);
        out.resize(len, Lookup::Miss);
        let mut unresolved = false;
        for at in run.start + hits..run.end {
            let found = query.found(at, refused);
            unresolved |= found.is_unresolved();
            if let Some(place) = out.get_mut(at) {
                *place = found;
            }
        }
        if unresolved {
            self.unresolved = true;
            query.awaited.push(run);
        }
    }

    /// The places and slots of `keys`, all of them hits; groups one after the other, each in order.
    pub fn hits(&self, keys: &[Key]) -> Option<(Vec<u32>, Vec<SlotId>, u64)> {
        let (mut places, mut slots, mut below) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()), 0);
        // Of each group: the next key, and the slots before it.
        let mut next: Vec<(usize, usize)> = self.queries.iter().map(|query| (0, query.first_slot)).collect();
        let all_slots = self.slots.as_chunks::<4>().0;
        for key in keys {
            let group = key.group() as usize;
            let (query, (start, slot)) = (self.queries.get(group)?, next.get_mut(group)?);
            let at = *start + query.keys.get(*start..)?.iter().position(|other| other == key)?;
            let Some(Answer::Hit { origin }) = Answer::from_byte(*query.answers.get(at)?) else { return None };
            below += u64::from(origin > 0);
            places.push(query.first.checked_add(u32::try_from(at).ok()?)?);
            *slot += query.answers.get(*start..at)?.iter().filter(|byte| is_hit(**byte)).count();
            slots.push(SlotId(u32::from_le_bytes(*all_slots.get(*slot)?)));
            (*start, *slot) = (at + 1, *slot + 1);
        }
        Some((places, slots, below))
    }

    /// What the request waits for, each key once, and the places of the keys.
    pub fn awaited(&self) -> Vec<(u32, Key)> {
        let mut awaited = Vec::new();
        for query in &self.queries {
            for (at, (key, answer)) in query.keys.iter().zip(&query.answers).enumerate() {
                if *answer != Answer::Miss.to_byte() && query.awaited.iter().any(|run| run.contains(&at)) {
                    awaited.push((query.first + at as u32, *key));
                }
            }
        }
        awaited
    }
}

impl AnsweredQuery {
    fn found(&self, at: usize, refused: &HashSet<Key>) -> Lookup {
        match self.answers.get(at).and_then(|byte| Answer::from_byte(*byte)) {
            None | Some(Answer::Miss) => Lookup::Miss,
            Some(Answer::Hit { .. }) => Lookup::Hit,
            Some(Answer::Pending) => Lookup::Pending,
            Some(Answer::Retry) => Lookup::Retry,
            Some(Answer::Found { .. }) => {
                let is_refused = !refused.is_empty() && self.keys.get(at).is_some_and(|key| refused.contains(key));
                if is_refused { Lookup::Miss } else { Lookup::Pending }
            }
        }
    }

    /// Hits in a row from the first key on, `len` at most.
    fn leading_hits(&self, len: usize) -> usize {
        self.answers.iter().take(len).position(|byte| !is_hit(*byte)).unwrap_or(self.answers.len().min(len))
    }

    /// The keys that count.
    fn run(&self, len: usize, mode: LookupMode, refused: &HashSet<Key>) -> Range<usize> {
        let is_miss = |at: &usize| self.found(*at, refused) == Lookup::Miss;
        match mode {
            LookupMode::Each => 0..len,
            LookupMode::Prefix => 0..(self.leading_hits(len)..len).find(is_miss).unwrap_or(len),
            LookupMode::Suffix { window } => {
                let mut run = 0..0;
                for at in (0..len).rev() {
                    run = match (is_miss(&at), run.is_empty()) {
                        (true, _) => 0..0,
                        (false, true) => at..at + 1,
                        (false, false) => at..run.end,
                    };
                    if run.len() >= window.max(1) as usize {
                        break;
                    }
                }
                run
            }
        }
    }
}
