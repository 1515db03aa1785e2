//! Traffic of realistic shape, for when no trace is at hand.
//!
//! Sessions start as a Poisson process. Most are chats: a system prompt that many share, then a few turns with a person's
//! pauses between them. The rest are agents: a longer prefix with tool descriptions, then many turns in quick succession.
//! Each turn sends everything so far and a little more, so that prompts grow by appending. Without end; the same seed
//! gives the same requests.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use anyhow::Result;

use super::mix::{GOLDEN, Random, mix};
use super::source::{Arrival, Progress, Source};

/// Largest prompt, blocks. Sessions end before they grow beyond it.
pub const PROMPT_BLOCKS_MAX: u32 = 192;
/// Tokens a block, unless the user says otherwise.
pub const TOKENS_PER_BLOCK: u32 = 64;

/// Shape of one kind of session.
struct Kind {
    /// Different prefixes that its sessions share.
    prefixes: u32,
    /// Length of a prefix, blocks.
    prefix_blocks: (u32, u32),
    /// Requests of a session.
    turns: (u32, u32),
    /// What a turn adds to the prompt, blocks.
    turn_blocks: (u32, u32),
    /// Mean pause between turns, milliseconds.
    pause_ms: f64,
    /// Tokens of an answer.
    output_tokens: (u32, u32),
}

const CHAT: Kind = Kind {
    prefixes: 12,
    prefix_blocks: (4, 24),
    turns: (1, 9),
    turn_blocks: (1, 12),
    pause_ms: 25_000.0,
    output_tokens: (50, 600),
};

const AGENT: Kind = Kind {
    prefixes: 6,
    prefix_blocks: (24, 64),
    turns: (6, 40),
    turn_blocks: (1, 8),
    pause_ms: 4_000.0,
    output_tokens: (20, 300),
};

/// Share of sessions that are agents.
const AGENT_SHARE: f64 = 0.25;
/// Mean time between session starts, milliseconds.
const START_GAP_MS: f64 = 1_500.0;

/// A session between two requests.
struct Session {
    next_ms: f64,
    /// Order of creation; settles ties, so that a seed gives one order.
    number: u64,
    kind: &'static Kind,
    prefix: u64,
    prefix_blocks: u32,
    blocks: u32,
    turns_left: u32,
}

/// An endless stream of requests.
pub struct Generator {
    random: Random,
    seed: u64,
    tokens_per_block: u32,
    sessions: BinaryHeap<Session>,
    next_start_ms: f64,
    started: u64,
    produced: u64,
    expected: u64,
}

impl Generator {
    /// The requests of this seed; `expected` (0: unknown) is how many will be asked for, for the progress bar.
    pub fn new(seed: u64, tokens_per_block: u32, expected: u64) -> Self {
        Self {
            random: Random::new(seed),
            seed: mix(seed ^ GOLDEN),
            tokens_per_block,
            sessions: BinaryHeap::new(),
            next_start_ms: 0.0,
            started: 0,
            produced: 0,
            expected,
        }
    }

    fn start(&mut self) -> Session {
        let random = &mut self.random;
        let kind = if random.unit() < AGENT_SHARE { &AGENT } else { &CHAT };
        // The smaller of two draws: some prefixes are much more popular than others.
        let choice = random.between(1, kind.prefixes).min(random.between(1, kind.prefixes));
        let prefix = mix(self.seed ^ mix(u64::from(choice) << 1 | u64::from(std::ptr::eq(kind, &AGENT))));
        let (low, high) = kind.prefix_blocks;
        let prefix_blocks = Random::new(prefix).between(low, high);
        let session = Session {
            next_ms: self.next_start_ms,
            number: self.started,
            kind,
            prefix,
            prefix_blocks,
            blocks: prefix_blocks + random.between(kind.turn_blocks.0, kind.turn_blocks.1),
            turns_left: random.between(kind.turns.0, kind.turns.1),
        };
        self.started += 1;
        self.next_start_ms += random.exponential(START_GAP_MS);
        session
    }

    fn ids(&self, session: &Session) -> Vec<u64> {
        let own = mix(self.seed.wrapping_add(session.number.wrapping_mul(GOLDEN)));
        let shared = (0..session.prefix_blocks).map(|place| (session.prefix, place));
        let rest = (session.prefix_blocks..session.blocks).map(|place| (own, place));
        shared.chain(rest).map(|(stem, place)| mix(stem.wrapping_add(u64::from(place).wrapping_mul(GOLDEN)))).collect()
    }

    fn produce(&mut self) -> Arrival {
        let due = self.sessions.peek().is_some_and(|session| session.next_ms <= self.next_start_ms);
        let mut session = match self.sessions.pop() {
            Some(session) if due => session,
            other => {
                self.sessions.extend(other);
                self.start()
            }
        };
        let kind = session.kind;
        let arrival = Arrival {
            timestamp_ms: session.next_ms,
            output_tokens: self.random.between(kind.output_tokens.0, kind.output_tokens.1),
            block_ids: self.ids(&session),
        };
        session.turns_left -= 1;
        session.blocks += self.random.between(kind.turn_blocks.0, kind.turn_blocks.1);
        session.next_ms += self.random.exponential(kind.pause_ms);
        if session.turns_left > 0 && session.blocks <= PROMPT_BLOCKS_MAX {
            self.sessions.push(session);
        }
        self.produced += 1;
        arrival
    }
}

impl Source for Generator {
    fn next_arrival(&mut self) -> Result<Option<Arrival>> {
        Ok(Some(self.produce()))
    }

    fn tokens_per_block(&self) -> u32 {
        self.tokens_per_block
    }

    fn progress(&self) -> Progress {
        Progress { done: self.produced, total: self.expected }
    }
}

impl Ord for Session {
    /// The heap's greatest is the session whose request comes next.
    fn cmp(&self, other: &Self) -> Ordering {
        other.next_ms.total_cmp(&self.next_ms).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Session {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Session {}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn take(seed: u64, count: usize) -> Vec<Arrival> {
        let mut generator = Generator::new(seed, TOKENS_PER_BLOCK, 0);
        (0..count).map(|_| generator.produce()).collect()
    }

    #[test]
    fn a_seed_gives_one_sequence() {
        assert_eq!(take(3, 500), take(3, 500));
        assert_ne!(take(3, 500), take(4, 500));
    }

    #[test]
    fn requests_come_in_order_and_ids_name_their_prefix() {
        let mut parents = HashMap::new();
        let mut last_ms = 0.0;
        for arrival in take(1, 5_000) {
            assert!(arrival.timestamp_ms >= last_ms);
            last_ms = arrival.timestamp_ms;
            assert!((1..=PROMPT_BLOCKS_MAX as usize).contains(&arrival.block_ids.len()));
            let mut parent = 0;
            for id in arrival.block_ids {
                assert_eq!(*parents.entry(id).or_insert(parent), parent, "a block with two prefixes");
                parent = id;
            }
        }
    }

    #[test]
    fn prompts_share_and_grow_as_real_ones_do() {
        let mut seen = std::collections::HashSet::new();
        let (mut references, mut hits) = (0, 0);
        for arrival in take(1, 10_000) {
            references += arrival.block_ids.len();
            hits += arrival.block_ids.iter().filter(|id| !seen.insert(**id)).count();
        }
        let ratio = hits as f64 / references as f64;
        assert!((0.80..0.97).contains(&ratio), "best possible hits {ratio}");
    }
}
