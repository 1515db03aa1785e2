//! Copies that could not be promoted: their tier is not asked for them again for a while.
//!
//! A tier forgets a block that it failed to load, but it is not trusted to: without this a copy that is found and fails each
//! time would be promoted until its request's deadline. Bounded: beyond the limit the oldest is forgotten.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use terrace_primary::Key;
use terrace_tiers::Time;

const LIMIT: usize = 4096;

type KeyMap<V> = HashMap<(Key, u8), V, BuildHasherDefault<DefaultHasher>>;

pub(crate) struct Suspects {
    until: KeyMap<Time>,
    /// In the order in which they end; entries that the map no longer has with this time are void.
    queue: VecDeque<(Time, Key, u8)>,
    period: Duration,
}

impl Suspects {
    pub fn new(period: Duration) -> Self {
        Self { until: KeyMap::default(), queue: VecDeque::new(), period }
    }

    pub fn add(&mut self, key: Key, tier: usize, now: Time) {
        self.expire(now);
        if self.queue.len() >= LIMIT {
            self.drop_oldest();
        }
        let until = now.plus(self.period);
        self.until.insert((key, tier as u8), until);
        self.queue.push_back((until, key, tier as u8));
    }

    /// A fresh copy was stored: the failed one is gone.
    pub fn clear(&mut self, key: &Key, tier: usize) {
        if !self.until.is_empty() {
            self.until.remove(&(*key, tier as u8));
        }
    }

    #[inline]
    pub fn contains(&self, key: &Key, tier: usize) -> bool {
        !self.until.is_empty() && self.until.contains_key(&(*key, tier as u8))
    }

    pub fn expire(&mut self, now: Time) {
        while self.queue.front().is_some_and(|(until, ..)| *until <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((until, key, tier)) = self.queue.pop_front()
            && self.until.get(&(key, tier)) == Some(&until)
        {
            self.until.remove(&(key, tier));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_by_time_by_a_fresh_copy_and_by_number() {
        let key = |n: u32| Key::new(&n.to_le_bytes(), 0).expect("a key");
        let mut suspects = Suspects::new(Duration::from_nanos(10));
        suspects.add(key(1), 0, Time(0));
        suspects.add(key(2), 0, Time(0));
        suspects.add(key(1), 0, Time(5));
        assert!(suspects.contains(&key(1), 0) && !suspects.contains(&key(1), 1));
        suspects.clear(&key(2), 0);
        assert!(!suspects.contains(&key(2), 0));
        suspects.expire(Time(10));
        assert!(suspects.contains(&key(1), 0), "added again at 5");
        suspects.expire(Time(15));
        assert!(!suspects.contains(&key(1), 0));
        (0..LIMIT as u32 + 1).for_each(|n| suspects.add(key(n), 3, Time(20)));
        assert!(!suspects.contains(&key(0), 3) && suspects.contains(&key(1), 3));
        assert!(suspects.queue.len() <= LIMIT && suspects.until.len() <= LIMIT);
    }
}
