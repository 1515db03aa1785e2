//! What the daemon answered to a request's lookup, and what the scheduler's search makes of it.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use terrace_primary::{Key, SlotId};
use terrace_tiering::{Lookup, LookupMode};

use crate::api::JobId;
use crate::port::PortQuery;
use crate::protocol::{Answer, LookupReply, numbers_from_bytes};

/// What is known of a request's blocks.
#[derive(Debug, Default)]
pub(super) enum Known {
    /// Nothing: all is a miss.
    #[default]
    Nothing,
    /// Nothing yet, since then: the daemon is late.
    NotYet(Instant),
    /// The daemon's answers.
    Answered(Box<Answered>),
}

/// The answers to one lookup.
#[derive(Debug)]
pub(super) struct Answered {
    pub at: Instant,
    pub lease: u64,
    /// Whether the lease is still held: until the end of the step.
    pub open: bool,
    /// Whether a search met a block that is not readable yet.
    pub unresolved: bool,
    /// The load that starts from the lease, with the places of its keys.
    pub load: Option<(JobId, Vec<u32>)>,
    queries: Vec<AnsweredQuery>,
}

#[derive(Debug)]
struct AnsweredQuery {
    keys: Vec<Key>,
    /// One for each leading key; the others are misses.
    answers: Vec<Answer>,
    /// Slots of hits, by place; anything for others.
    slots: Vec<SlotId>,
    /// Place of the first key among the keys of the lookup.
    first: u32,
    /// What searches found and wait for.
    awaited: Vec<Range<usize>>,
}

impl Answered {
    /// From a reply to `queries`. `Err`: what is wrong with it.
    pub fn new(queries: Vec<PortQuery>, reply: &LookupReply, slots_in_region: u32) -> Result<Self, &'static str> {
        let mut slots = Vec::new();
        numbers_from_bytes(&reply.slots, &mut slots).map_err(|_| "slots that are no numbers")?;
        if slots.iter().any(|slot| *slot >= slots_in_region) {
            return Err("a slot beyond the region");
        }
        let mut slots = slots.into_iter().map(SlotId);
        let mut bytes = reply.answers.iter();
        let mut answered = Vec::with_capacity(queries.len());
        let mut first = 0u32;
        for PortQuery { prefix_only, keys } in queries {
            let mut query = AnsweredQuery { keys, answers: Vec::new(), slots: Vec::new(), first, awaited: Vec::new() };
            first = first.saturating_add(u32::try_from(query.keys.len()).map_err(|_| "too many keys")?);
            query.answers.reserve(query.keys.len());
            while query.answers.len() < query.keys.len() {
                let byte = bytes.next().ok_or("fewer answers than keys")?;
                let answer = Answer::from_byte(*byte).ok_or("an answer that is none")?;
                query.answers.push(answer);
                query.slots.push(match answer {
                    Answer::Hit { .. } => slots.next().ok_or("fewer slots than hits")?,
                    _ => SlotId(u32::MAX),
                });
                if prefix_only && answer == Answer::Miss {
                    break;
                }
            }
            answered.push(query);
        }
        if bytes.next().is_some() || slots.next().is_some() {
            return Err("more answers than keys, or more slots than hits");
        }
        if reply.lease == 0 && !reply.slots.is_empty() {
            return Err("hits without a lease");
        }
        Ok(Self {
            at: Instant::now(),
            lease: reply.lease,
            open: reply.lease != 0,
            unresolved: false,
            load: None,
            queries: answered,
        })
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
        out.resize(len, Lookup::Miss);
        let Some(query) = self.queries.get_mut(group) else { return };
        let run = query.run(len, mode, refused);
        let mut unresolved = false;
        for at in run.clone() {
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
        let mut next: Vec<usize> = vec![0; self.queries.len()];
        for key in keys {
            let group = key.group() as usize;
            let (query, next) = (self.queries.get(group)?, next.get_mut(group)?);
            let rest = query.keys.get(*next..)?;
            let at = *next + rest.iter().position(|other| other == key)?;
            let Answer::Hit { origin } = *query.answers.get(at)? else { return None };
            below += u64::from(origin > 0);
            places.push(query.first.checked_add(u32::try_from(at).ok()?)?);
            slots.push(*query.slots.get(at)?);
            *next = at + 1;
        }
        Some((places, slots, below))
    }

    /// What the request waits for, each key once, and the places of the keys.
    pub fn awaited(&self) -> Vec<(u32, Key)> {
        let mut awaited = Vec::new();
        for query in &self.queries {
            for (at, (key, answer)) in query.keys.iter().zip(&query.answers).enumerate() {
                if *answer != Answer::Miss && query.awaited.iter().any(|run| run.contains(&at)) {
                    awaited.push((query.first + at as u32, *key));
                }
            }
        }
        awaited
    }
}

impl AnsweredQuery {
    fn found(&self, at: usize, refused: &HashSet<Key>) -> Lookup {
        match self.answers.get(at) {
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

    /// The keys that count.
    fn run(&self, len: usize, mode: LookupMode, refused: &HashSet<Key>) -> Range<usize> {
        let is_miss = |at: &usize| self.found(*at, refused) == Lookup::Miss;
        match mode {
            LookupMode::Each => 0..len,
            LookupMode::Prefix => 0..(0..len).find(is_miss).unwrap_or(len),
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
