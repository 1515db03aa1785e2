//! Who does not read what it asked for. Pure: times come from the caller.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_tiers::Time;

use super::session::SessionId;

/// One that takes nothing for so long is to be closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sessions with many replies waiting: how many bytes each had taken by then, since when.
#[derive(Debug, Default)]
pub(super) struct Stalled(BTreeMap<SessionId, (u64, Time)>);

impl Stalled {
    /// Looks at all of them: each with the bytes that it has taken so far. Answers which have taken none for too long.
    pub fn look(&mut self, now: Time, waiting: impl Iterator<Item = (SessionId, u64)>) -> Vec<SessionId> {
        let before = std::mem::take(&mut self.0);
        let since = |id, taken| match before.get(&id) {
            Some((same, since)) if *same == taken => *since,
            _ => now,
        };
        self.0 = waiting.map(|(id, taken)| (id, (taken, since(id, taken)))).collect();
        self.0.iter().filter(|(_, (_, since))| now.since(*since) >= PATIENCE).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_nothing_for_long_is_told_and_who_is_slow_is_not() {
        let mut stalled = Stalled::default();
        let mut told = Vec::new();
        for second in 0..=20_u64 {
            // One takes nothing, one a little now and then, one has nothing waiting in between.
            let waiting = [(1, 50), (2, second / 4), (3, 70)].into_iter().filter(|(id, _)| *id != 3 || second != 5);
            told.extend(stalled.look(Time(second * 1_000_000_000), waiting).into_iter().map(|id| (second, id)));
        }
        let again =
            (10..=20).flat_map(|second| [(second, 1), (second, 3)]).filter(|(second, id)| *id == 1 || *second >= 16);
        assert_eq!(told, again.collect::<Vec<_>>());
    }
}
