//! Which requests get which fault.

use std::str::FromStr;
use std::time::Duration;

use super::operation::{Operation, Seen};

/// What is done to a request or to its answer.
///
/// Faults of a body apply to operations whose answers have one, faults of a range to reads that ask for one,
/// [`Fault::StaleList`] to [`Operation::List`], and [`Fault::ResetInUpload`] to [`Operation::Put`] and [`Operation::UploadPart`]: other requests do not match their rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The request goes on this much later. Those of all rules that fire add up.
    Latency(Duration),
    /// Answered with this status and an S3 error (503 `SlowDown`, 500 `InternalError`, 404 `NoSuchKey`); the server
    /// does not see it.
    Status(u16),
    /// The server does it, and the client is told this status.
    StatusAfter(u16),
    /// The connection is reset; the server does not see the request.
    ResetBefore,
    /// The server does it, and the connection is reset instead of an answer.
    ResetAfter,
    /// The server gets half of the request's body, then both connections are cut.
    ResetInUpload,
    /// Half of the answer's body, then the connection is reset.
    ResetInBody,
    /// Half of the answer's body, Content-Length as it was, then the connection is closed.
    ShortBody,
    /// Half of the answer's body with a Content-Length that says so: it looks complete.
    Truncated,
    /// So many bits of the answer's body are flipped, at places that the rule's seed gives.
    WrongBytes {
        /// Bits; of a shorter body all.
        bits: u32,
    },
    /// Another range of the same object, as long where the object has one.
    WrongRange {
        /// Content-Range names what is served; else it names what was asked for.
        honest: bool,
    },
    /// The range is ignored: 200 and the whole object.
    RangeIgnored,
    /// A listing is answered with what the same listing was answered the first time since all rules were cleared.
    StaleList,
    /// Taken in and never answered, as long as the client waits.
    Hang,
}

impl Fault {
    /// One of every kind that ends at once and with the request: all but [`Fault::Latency`], [`Fault::StaleList`] and [`Fault::Hang`].
    pub fn all() -> Vec<Self> {
        vec![
            Self::Status(500),
            Self::Status(503),
            Self::Status(404),
            Self::StatusAfter(500),
            Self::ResetBefore,
            Self::ResetAfter,
            Self::ResetInUpload,
            Self::ResetInBody,
            Self::ShortBody,
            Self::Truncated,
            Self::WrongBytes { bits: 1 },
            Self::WrongBytes { bits: 64 },
            Self::WrongRange { honest: true },
            Self::WrongRange { honest: false },
            Self::RangeIgnored,
        ]
    }

    fn suits(&self, seen: &Seen) -> bool {
        match self {
            Self::ResetInBody | Self::ShortBody | Self::Truncated | Self::WrongBytes { .. } => {
                seen.operation.answers_with_body()
            }
            Self::WrongRange { .. } | Self::RangeIgnored => seen.operation == Operation::Get && seen.ranged,
            Self::ResetInUpload => seen.operation.uploads(),
            Self::StaleList => seen.operation == Operation::List,
            Self::Latency(_)
            | Self::Status(_)
            | Self::StatusAfter(_)
            | Self::ResetBefore
            | Self::ResetAfter
            | Self::Hang => true,
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    /// `500`, `500-after`, `latency-20` (milliseconds), `reset-before`, `reset-after`, `reset-in-upload`,
    /// `reset-in-body`, `short-body`, `truncated`, `wrong-bytes` or `wrong-bytes-64` (bits), `wrong-range`,
    /// `wrong-range-honest`, `range-ignored`, `stale-list`, `hang`.
    fn from_str(text: &str) -> Result<Self, String> {
        let status = |text: &str| text.parse().ok().filter(|status| (200..600).contains(status));
        Ok(match text {
            "reset-before" => Self::ResetBefore,
            "reset-after" => Self::ResetAfter,
            "reset-in-upload" => Self::ResetInUpload,
            "reset-in-body" => Self::ResetInBody,
            "short-body" => Self::ShortBody,
            "truncated" => Self::Truncated,
            "wrong-bytes" => Self::WrongBytes { bits: 1 },
            "wrong-range" => Self::WrongRange { honest: false },
            "wrong-range-honest" => Self::WrongRange { honest: true },
            "range-ignored" => Self::RangeIgnored,
            "stale-list" => Self::StaleList,
            "hang" => Self::Hang,
            _ => {
                let latency = text.strip_prefix("latency-").and_then(|text| text.parse().ok());
                let bits = text.strip_prefix("wrong-bytes-").and_then(|text| text.parse().ok());
                let after = text.strip_suffix("-after").and_then(status);
                None.or(latency.map(|millis| Self::Latency(Duration::from_millis(millis))))
                    .or(bits.map(|bits| Self::WrongBytes { bits }))
                    .or(after.map(Self::StatusAfter))
                    .or(status(text).map(Self::Status))
                    .ok_or_else(|| format!("no fault is called {text:?}"))?
            }
        })
    }
}

/// A fault, or one of several, and the requests that get it.
#[derive(Clone, Debug)]
pub struct Rule {
    faults: Vec<Fault>,
    operations: Vec<Operation>,
    part: String,
    share: f64,
    seed: u64,
    after: u64,
    times: u64,
}

impl Rule {
    /// Every request that the fault suits gets it, until more is said.
    pub fn new(fault: Fault) -> Self {
        Self::any([fault])
    }

    /// Every request that one of these faults suits gets one of those that do, by chance, as in
    /// `Rule::any(Fault::all()).share(0.01)`.
    pub fn any(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            faults: faults.into_iter().collect(),
            operations: Vec::new(),
            part: String::new(),
            share: 1.0,
            seed: 0,
            after: 0,
            times: u64::MAX,
        }
    }

    /// Only these operations.
    #[must_use]
    pub fn on(mut self, operations: impl IntoIterator<Item = Operation>) -> Self {
        self.operations = operations.into_iter().collect();
        self
    }

    /// Only targets with this in them: `/bucket/key`, decoded; of a list `/bucket/prefix`.
    #[must_use]
    pub fn containing(mut self, part: impl Into<String>) -> Self {
        self.part = part.into();
        self
    }

    /// Only this share of them, 0 to 1. Which, says the seed and the number of the request among those that match.
    #[must_use]
    pub fn share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// Another choice of the same share, and other bits.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The first `count` that match are left alone.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.after = count;
        self
    }

    /// At most so often.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = count;
        self
    }

    fn matches(&self, seen: &Seen) -> bool {
        (self.operations.is_empty() || self.operations.contains(&seen.operation)) && seen.target.contains(&self.part)
    }

    /// Its fault for this request, if it has one that suits.
    fn fault(&self, seen: &Seen, chance: u64) -> Option<Fault> {
        let suiting: Vec<_> = self.faults.iter().filter(|fault| fault.suits(seen)).collect();
        let count = u64::try_from(suiting.len()).ok().filter(|count| *count > 0)?;
        suiting.get(usize::try_from(chance % count).ok()?).map(|fault| **fault)
    }
}

/// A rule of one proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(usize);

/// The rules of a proxy, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// By [`RuleId`]. Those that were removed stay, for their numbers.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    rule: Rule,
    removed: bool,
    matched: u64,
    fired: u64,
    made: u64,
}

/// What is done to one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decision {
    /// Of all rules that fired together.
    pub latency: Duration,
    /// Rules that gave it.
    pub latencies: u32,
    pub fault: Option<(RuleId, Fault)>,
    /// For what of the fault is left to chance.
    pub seed: u64,
}

impl Rules {
    pub fn add(&mut self, rule: Rule) -> RuleId {
        self.entries.push(Entry { rule, removed: false, matched: 0, fired: 0, made: 0 });
        RuleId(self.entries.len() - 1)
    }

    pub fn remove(&mut self, id: RuleId) {
        if let Some(entry) = self.entries.get_mut(id.0) {
            entry.removed = true;
        }
    }

    pub fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.removed = true);
    }

    pub fn applied(&self, id: RuleId) -> u64 {
        self.entries.get(id.0).map_or(0, |entry| entry.made)
    }

    /// Asks all rules. A latency counts as made at once, another fault when [`Self::made`] says so.
    pub fn decide(&mut self, seen: &Seen) -> Decision {
        let mut decision = Decision::default();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.removed || !entry.rule.matches(seen) {
                continue;
            }
            let chance = mix(entry.rule.seed, entry.matched);
            let Some(fault) = entry.rule.fault(seen, mix(chance, 0)) else { continue };
            let latency = if let Fault::Latency(latency) = fault { Some(latency) } else { None };
            if latency.is_none() && decision.fault.is_some() {
                continue;
            }
            entry.matched += 1;
            // 53 bits: every such fraction is a float.
            let fires = ((chance >> 11) as f64) < entry.rule.share * (1u64 << 53) as f64;
            if entry.matched <= entry.rule.after || entry.fired >= entry.rule.times || !fires {
                continue;
            }
            entry.fired += 1;
            match latency {
                Some(latency) => {
                    entry.made += 1;
                    decision.latency += latency;
                    decision.latencies += 1;
                }
                None => {
                    decision.fault = Some((RuleId(index), fault));
                    decision.seed = mix(chance, 1);
                }
            }
        }
        decision
    }

    /// The fault of this rule, no latency, was made once more.
    pub fn made(&mut self, id: RuleId) {
        if let Some(entry) = self.entries.get_mut(id.0) {
            entry.made += 1;
        }
    }
}

/// SplitMix64's `count`-th number of `seed` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(super) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(operation: Operation, target: &str) -> Seen {
        Seen { operation, target: target.to_owned(), ranged: false }
    }

    #[test]
    fn a_share_is_kept_and_the_seed_decides() {
        let fired = |seed| {
            let mut rules = Rules::default();
            rules.add(Rule::new(Fault::Status(500)).share(0.1).seed(seed));
            (0..10_000).map(|_| rules.decide(&seen(Operation::Get, "/b/k")).fault.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(fired(1), fired(1));
        assert_ne!(fired(1), fired(2));
        let count = fired(3).iter().filter(|fired| **fired).count();
        assert!((900..1100).contains(&count), "{count} of 10,000");
    }

    #[test]
    fn rules_choose_by_operation_place_and_number() {
        let mut rules = Rules::default();
        let status =
            rules.add(Rule::new(Fault::Status(404)).on([Operation::Get]).containing("/log/").after(1).times(2));
        rules.add(Rule::new(Fault::Latency(Duration::from_millis(3))));
        rules.add(Rule::new(Fault::Latency(Duration::from_millis(4))));
        let mut decide = |operation, target| {
            let decision = rules.decide(&seen(operation, target));
            assert_eq!(decision.latency, Duration::from_millis(7), "latencies add up");
            if let Some((id, _)) = decision.fault {
                rules.made(id);
            }
            decision.fault.map(|(_, fault)| fault)
        };
        assert_eq!(decide(Operation::Put, "/b/log/1"), None);
        assert_eq!(decide(Operation::Get, "/b/segments/1"), None);
        let log = [(); 4].map(|()| decide(Operation::Get, "/b/log/1").is_some());
        assert_eq!(log, [false, true, true, false]);
        assert_eq!(rules.applied(status), 2);
    }

    #[test]
    fn one_of_several_faults_is_one_that_suits() {
        let mut rules = Rules::default();
        rules.add(Rule::any(Fault::all()));
        let mut kinds = |operation| {
            let of = |_| rules.decide(&seen(operation, "/b/k")).fault.map(|(_, fault)| fault);
            (0..1000).filter_map(of).fold(Vec::new(), |mut kinds, fault| {
                if !kinds.contains(&fault) {
                    kinds.push(fault);
                }
                kinds
            })
        };
        let (put, get) = (kinds(Operation::Put), kinds(Operation::Get));
        assert!(put.contains(&Fault::ResetInUpload) && !put.contains(&Fault::ShortBody), "{put:?}");
        assert!(get.contains(&Fault::ShortBody) && !get.contains(&Fault::RangeIgnored), "{get:?}");
        assert_eq!((put.len(), get.len()), (7, 11));
    }

    #[test]
    fn faults_have_names() {
        assert_eq!("503".parse(), Ok(Fault::Status(503)));
        assert_eq!("500-after".parse(), Ok(Fault::StatusAfter(500)));
        assert_eq!("latency-20".parse(), Ok(Fault::Latency(Duration::from_millis(20))));
        assert_eq!("wrong-bytes-8".parse(), Ok(Fault::WrongBytes { bits: 8 }));
        assert_eq!("range-ignored".parse(), Ok(Fault::RangeIgnored));
        assert!("99".parse::<Fault>().is_err() && "".parse::<Fault>().is_err());
    }
}
