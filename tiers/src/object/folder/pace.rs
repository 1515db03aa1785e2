//! When to list the log again, and from where. Pure: times come from the caller.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Time;
use crate::object::id::WriterId;

/// Lookups say that what others store matters now; so long.
const ASKED_FOR: Duration = Duration::from_secs(1);
/// Names are listed again so far back at every listing: what was on its way while later stamps were seen.
pub(super) const OVERLAP: Duration = Duration::from_secs(5);
/// Every so often, and when a log object is missing, listings go back further than that.
const WIDE_EVERY: Duration = Duration::from_secs(60);
/// How far those go back.
pub(super) const WIDE: Duration = Duration::from_secs(120);
/// After failures at least so long passes before the next try.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How often to list: at the shortest interval while somebody asks or news come, ever more rarely when not.
#[derive(Debug)]
pub(super) struct Pace {
    shortest: Duration,
    longest: Duration,
    interval: Duration,
    last: Time,
    failing: bool,
}

impl Pace {
    /// Nothing listed yet: it is due at once.
    pub fn new(shortest: Duration, longest: Duration, now: Time) -> Self {
        Self { shortest, longest: longest.max(shortest), interval: Duration::ZERO, last: now, failing: false }
    }

    /// A listing began at `began`. `news`: it brought something, or something is missing.
    pub fn listed(&mut self, began: Time, news: bool) {
        self.last = began;
        self.failing = false;
        self.interval = if news { self.shortest } else { self.longer() };
    }

    /// A listing failed.
    pub fn failed(&mut self, began: Time) {
        self.last = began;
        self.failing = true;
        self.interval = self.longer().max(AFTER_FAILURE);
    }

    fn longer(&self) -> Duration {
        (self.interval * 2).clamp(self.shortest, self.longest)
    }

    /// When the next one is due. `asked`: when somebody last asked for blocks.
    pub fn due(&self, asked: Option<Time>, now: Time) -> Time {
        let asked = asked.is_some_and(|asked| now.since(asked) < ASKED_FOR);
        // A store that failed is not asked more often because somebody waits for it.
        let shortest = if self.failing { self.shortest.max(AFTER_FAILURE) } else { self.shortest };
        let interval = if asked { self.interval.min(shortest) } else { self.interval };
        self.last.plus(interval)
    }
}

/// How far back a listing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// [`OVERLAP`].
    Overlap,
    /// [`WIDE`].
    Wide,
    /// As far as log objects are kept, and to the first that was listed and could not be read.
    Whole,
}

/// What listings must reach, given what is missing.
#[derive(Debug)]
pub(super) struct Reaches {
    retention: Duration,
    /// When everything was read.
    read: Time,
    wide: Time,
    whole: Time,
    /// Writers of whom a log object is missing, and since when.
    missing: HashMap<WriterId, Time>,
    /// Listings made for what is missing, and when the next is due.
    tries: u32,
    again: Time,
}

impl Reaches {
    /// All was listed `now`.
    pub fn new(retention: Duration, now: Time) -> Self {
        Self { retention, read: now, wide: now, whole: now, missing: HashMap::new(), tries: 0, again: now }
    }

    /// Everything was read anew, begun then. What is missing after that is so since it was before.
    pub fn read(&mut self, began: Time) {
        let missing = std::mem::take(&mut self.missing);
        *self = Self { missing, ..Self::new(self.retention, began) };
    }

    /// Whether everything was read so long ago that it may be read again for what is missing.
    pub fn may_read(&self, now: Time) -> bool {
        now.since(self.read) >= self.retention / 2
    }

    /// What the listing that begins now must reach.
    pub fn next(&self, now: Time) -> Reach {
        if now.since(self.whole) >= self.retention / 4 {
            return Reach::Whole;
        }
        if !self.missing.is_empty() && now >= self.again {
            return if self.tries == 0 { Reach::Wide } else { Reach::Whole };
        }
        if now.since(self.wide) >= WIDE_EVERY { Reach::Wide } else { Reach::Overlap }
    }

    /// A listing of that reach, begun at `began`, is done, and these writers' log objects are missing something now. Answers whose are
    /// missing for half the time that log objects are kept, and for how long.
    pub fn listed(
        &mut self,
        reach: Reach,
        began: Time,
        missing: impl Iterator<Item = WriterId>,
    ) -> Vec<(WriterId, Duration)> {
        let before = std::mem::take(&mut self.missing);
        let mut fresh = false;
        for writer in missing {
            let since = before.get(&writer).copied();
            fresh |= since.is_none();
            self.missing.insert(writer, since.unwrap_or(began));
        }
        if reach >= Reach::Wide {
            self.wide = began;
        }
        if reach == Reach::Whole {
            self.whole = began;
        }
        if fresh {
            (self.tries, self.again) = (0, began);
        } else if !self.missing.is_empty() && began >= self.again {
            self.tries += 1;
            // At once to the whole, then more and more rarely.
            let doublings = self.tries.saturating_sub(2).min(10);
            let pause = if self.tries < 2 { Duration::ZERO } else { WIDE_EVERY * (1 << doublings) };
            self.again = began.plus(pause);
        }
        let ages = self.missing.iter().map(|(writer, since)| (*writer, began.since(*since)));
        ages.filter(|(_, age)| *age >= self.retention / 2).collect()
    }

    /// Whether something is missing that should be looked for at once.
    pub fn hurry(&self) -> bool {
        !self.missing.is_empty() && self.tries < 2
    }
}
