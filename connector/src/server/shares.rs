//! How much of each NVMe tier each pool may take now.
//!
//! Every pool asks once a second, with what it has and whether it wants more, and is told its limit. What is lowered is evicted by the
//! pool's tier; what is raised comes only out of what nobody holds, so that the pools together stay inside the capacity at any moment.
//! Files outlive the daemon: the most that a place's directory may hold stands in a file beside it, and counts until the place is used again.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrace_config::{Config, TierKind};
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::TierStats;

use super::pool::Pool;

/// Name of the file that says how many bytes a place's directories may hold.
const HELD: &str = "HELD";
/// Steps of that number, of a capacity.
const HELD_STEPS: u64 = 16;
/// A pool that stores and has so much of what its watermark lets it have wants more.
const NEARLY_FULL: f64 = 0.75;

/// What one place may have, has, and wants. In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    pub guaranteed: u64,
    pub maximum: u64,
    pub demand: u64,
    /// Its limit as it was.
    pub limit: u64,
}

/// Limits that are fair: together at most `capacity`; each at least what it wants of what it is guaranteed, and at most its maximum; nothing
/// is left over that somebody wants. What is wanted beyond guarantees is shared in their proportion. What nobody wants goes to those who
/// have less than they are guaranteed, then stays where it was.
pub(super) fn fair(capacity: u64, claims: &[Claim]) -> Vec<u64> {
    let wanted = |claim: &Claim| claim.demand.min(claim.maximum);
    let mut left = capacity;
    let mut limits = Vec::with_capacity(claims.len());
    for claim in claims {
        let limit = wanted(claim).min(claim.guaranteed).min(left);
        left -= limit;
        limits.push(limit);
    }
    // A round satisfies somebody, or shares out all that is left but a few bytes.
    for _ in claims {
        let weight = |(claim, limit): (&Claim, &u64)| match wanted(claim) > *limit {
            true => u128::from(claim.guaranteed.max(1)),
            false => 0,
        };
        let weights = claims.iter().zip(&limits).map(weight).sum::<u128>().max(1);
        let pot = u128::from(left);
        for (claim, limit) in claims.iter().zip(&mut limits) {
            let part = (pot * weight((claim, limit)) / weights) as u64;
            let more = part.min(wanted(claim).saturating_sub(*limit));
            *limit += more;
            left -= more;
        }
    }
    // The bytes that no part came to, then what nobody wants.
    let bounds =
        [wanted, |claim: &Claim| claim.guaranteed.min(claim.maximum), |claim: &Claim| claim.limit.min(claim.maximum)];
    for bound in bounds {
        for (claim, limit) in claims.iter().zip(&mut limits) {
            let more = bound(claim).saturating_sub(*limit).min(left);
            *limit += more;
            left -= more;
        }
    }
    limits
}

/// One place's part of one tier.
#[derive(Debug, Default)]
struct Seat {
    claim: Claim,
    /// Bytes that its files take, as it last said.
    used: u64,
    /// Blocks that it had stored when it last asked.
    stored: u64,
    /// A pool is there.
    open: bool,
    /// Where it is kept what its directories may hold, and what stands there.
    file: PathBuf,
    written: u64,
}

impl Seat {
    /// What others cannot have.
    fn held(&self) -> u64 {
        self.used.max(self.claim.limit)
    }
}

/// One NVMe tier.
#[derive(Debug)]
struct Level {
    /// Index of the tier.
    tier: usize,
    capacity: u64,
    /// What of a limit counts as nearly full.
    nearly: f64,
    seats: Vec<Seat>,
}

/// All NVMe tiers of a daemon whose capacities are shared out. Pools ask it in turn.
#[derive(Debug)]
pub(super) struct Arbiter {
    levels: Vec<Level>,
}

impl Arbiter {
    /// `None`: capacities are not shared out. Reads what places hold from an earlier life.
    pub fn new(config: &Config) -> Option<Self> {
        if !config.has_shares() {
            return None;
        }
        let mut levels = Vec::new();
        for (tier, entry) in config.tiers.iter().enumerate() {
            let TierKind::Nvme(nvme) = &entry.kind else { continue };
            let capacity = nvme.capacity_bytes;
            let seat = |seat: u32| {
                let share = config.share_at(seat);
                let of = |part: f64| ((capacity as f64 * part) as u64).min(capacity);
                let (guaranteed, maximum) = share.map_or((0, 0), |share| (of(share.guaranteed), of(share.maximum)));
                let mut directories = nvme.paths.iter().map(|path| Config::pool_path(path, config.server.pools, seat));
                let file = directories.next().unwrap_or_default().join(HELD);
                // What is not written down was stored before there were shares: an equal part.
                let used = held(&file).unwrap_or(capacity / u64::from(config.server.pools.max(1)));
                if used > guaranteed {
                    tracing::info!(
                        file = %file.display(),
                        bytes = used,
                        "an earlier life borrowed here: it counts until an engine of the tenant connects"
                    );
                }
                Seat {
                    claim: Claim { guaranteed, maximum, ..Claim::default() },
                    used,
                    file,
                    written: used,
                    ..Seat::default()
                }
            };
            let seats = (0..config.server.pools.max(1)).map(seat).collect();
            levels.push(Level { tier, capacity, nearly: nvme.high_watermark * NEARLY_FULL, seats });
        }
        Some(Self { levels })
    }

    /// The limit of a place in a tier, of which it has `used` bytes, if they are counted, and had stored `stored` blocks. `None`: it is not
    /// shared out.
    pub fn ask(&mut self, tier: usize, seat: u32, used: Option<u64>, stored: u64) -> Option<u64> {
        let Level { capacity, nearly, seats, .. } = self.levels.iter_mut().find(|level| level.tier == tier)?;
        let at = seat as usize;
        let asks = seats.get_mut(at)?;
        asks.used = used.unwrap_or(asks.used);
        let room = |used: u64| (used as f64 / nearly.max(f64::EPSILON)) as u64;
        let is_nearly_full = room(asks.used) >= asks.claim.limit;
        asks.claim.demand = match is_nearly_full {
            true if asks.open && stored > asks.stored => asks.claim.maximum,
            true => room(asks.used).max(asks.claim.guaranteed),
            false => room(asks.used),
        };
        (asks.open, asks.stored) = (true, stored);

        // Nothing goes out of a directory that no pool has.
        let closed: u64 = seats.iter().filter(|seat| !seat.open).map(Seat::held).sum();
        let claim = |seat: &Seat| if seat.open { seat.claim } else { Claim::default() };
        let fair = fair(capacity.saturating_sub(closed), &seats.iter().map(claim).collect::<Vec<_>>());
        let others: u64 = seats.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, seat)| seat.held()).sum();
        let limit = fair.get(at).copied().unwrap_or(0).min(capacity.saturating_sub(others));
        let asks = seats.get_mut(at)?;
        // Before more is used; and when much less is, so that it does not count for ever. In steps, so that it is seldom written.
        let step = capacity.div_ceil(HELD_STEPS).max(1);
        let may_hold = limit.max(asks.used).div_ceil(step).saturating_mul(step);
        if may_hold > asks.written || may_hold.saturating_add(step) < asks.written {
            match write_held(&asks.file, may_hold) {
                Ok(()) => asks.written = may_hold,
                Err(error) if may_hold > asks.written => {
                    tracing::warn!(file = %asks.file.display(), %error, "a limit stays as it is: what may be held cannot be written down");
                    return Some(asks.claim.limit);
                }
                Err(_) => {}
            }
        }
        asks.claim.limit = limit;
        Some(limit)
    }

    /// A pool has ended; its files stay.
    pub fn leave(&mut self, seat: u32) {
        for seat in self.levels.iter_mut().filter_map(|level| level.seats.get_mut(seat as usize)) {
            (seat.open, seat.stored) = (false, 0);
        }
    }
}

/// A pool's end of the arbiter. Its place is free when this is dropped.
pub(super) struct Lent {
    arbiter: Arc<Mutex<Arbiter>>,
    seat: u32,
}

impl Lent {
    pub fn new(arbiter: Arc<Mutex<Arbiter>>, seat: u32) -> Self {
        Self { arbiter, seat }
    }

    /// Has every tier keep to what the pool may have of it now. True if one must give something back.
    fn keep(&self, manager: &mut TieringOffloadingManager) -> bool {
        let mut gives_back = false;
        for (at, report) in manager.stats().tiers.into_iter().enumerate() {
            let TierStats { allocated_bytes, counting, stored, .. } = report.tier;
            let used = (!counting && !report.panicked).then_some(allocated_bytes);
            let limit = self.lock().ask(at, self.seat, used, stored);
            if let Some(limit) = limit {
                manager.set_tier_limit(at, limit);
                gives_back |= allocated_bytes > limit;
            }
        }
        gives_back
    }

    fn lock(&self) -> MutexGuard<'_, Arbiter> {
        self.arbiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lock().leave(self.seat);
    }
}

impl Pool {
    /// From here on the pool has only what is lent to it.
    pub fn lend(&mut self, lent: Option<Lent>) {
        self.lent = lent;
        self.keep_to_share();
    }

    /// Once a second: asks how much of each tier the pool may have.
    pub fn keep_to_share(&mut self) {
        self.gives_back = self.lent.as_ref().is_some_and(|lent| lent.keep(&mut self.manager));
    }
}

/// What a place may hold. Nothing where it was never used; `None` where that cannot be known.
fn held(file: &Path) -> Option<u64> {
    match std::fs::read_to_string(file) {
        Ok(text) => text.trim().parse().ok(),
        Err(_) => file.parent().filter(|place| !place.exists()).map(|_| 0),
    }
}

fn write_held(file: &Path, bytes: u64) -> std::io::Result<()> {
    let new = file.with_extension("new");
    let mut opened = std::fs::File::create(&new)?;
    writeln!(opened, "{bytes}")?;
    // Not flushed: a pool's thread does not wait for a disk. After a loss of power an older number may stand there.
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> impl Strategy<Value = (u64, Vec<Claim>)> {
        let claim = (0..1000_u64, 0..2000_u64, 0..3000_u64, 0..3000_u64);
        prop::collection::vec(claim, 0..6).prop_flat_map(|parts| {
            let claim =
                |(guaranteed, more, demand, limit)| Claim { guaranteed, maximum: guaranteed + more, demand, limit };
            let claims: Vec<Claim> = parts.into_iter().map(claim).collect();
            let least: u64 = claims.iter().map(|claim| claim.guaranteed).sum();
            (least..least + 3000, Just(claims))
        })
    }

    proptest! {
        #[test]
        fn limits_are_fair((capacity, claims) in claims()) {
            let limits = fair(capacity, &claims);
            let sum: u64 = limits.iter().sum();
            prop_assert!(limits.len() == claims.len() && sum <= capacity);
            let mut unmet = 0;
            for (claim, limit) in claims.iter().zip(&limits) {
                prop_assert!(*limit <= claim.maximum && *limit >= claim.guaranteed.min(claim.demand));
                unmet += claim.demand.min(claim.maximum).saturating_sub(*limit);
            }
            prop_assert!(unmet == 0 || sum == capacity, "{} left, and {} wanted", capacity - sum, unmet);
        }
    }

    proptest! {
        // Each case writes files.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn pools_stay_inside_the_capacity_at_any_moment(
            asks in prop::collection::vec((0..3_u32, 0..4_u8), 1..200),
        ) {
            let place = tempfile::tempdir().expect("a directory");
            let mut arbiter = Arbiter::new(&config(place.path())).expect("shares");
            let mut pools = [(0_u64, 0_u64, 0_u64); 3];
            for (seat, what) in asks {
                let (used, stored, limit) = &mut pools[seat as usize];
                match what {
                    // Stores as much as it may.
                    0 => (*used, *stored) = ((*used).max(*limit), *stored + 1),
                    // What is above the limit goes, half of it at a time.
                    1 => *used = (*used).min(*limit + used.saturating_sub(*limit) / 2),
                    2 => *used /= 2,
                    _ => arbiter.leave(seat),
                }
                *limit = arbiter.ask(0, seat, Some(*used), *stored).expect("an NVMe tier");
                let held: u64 = pools.iter().map(|(used, _, limit)| used.max(limit)).sum();
                prop_assert!(held <= CAPACITY, "{pools:?}");
            }
        }
    }

    const CAPACITY: u64 = 1 << 30;

    fn config(place: &Path) -> Config {
        let path = place.join("nvme");
        let text = format!(
            "[primary]\nblocks = 9\n[server]\npools = 3\n[[tier]]\ntype = \"nvme\"\npaths = [{path:?}]\ncapacity = {CAPACITY}\n\
             [[tenant]]\nname = \"a\"\nguaranteed = 0.25\n[[tenant]]\nname = \"b\"\nguaranteed = 0.5\nmaximum = 0.75\n"
        );
        let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
        for seat in 0..3 {
            std::fs::create_dir_all(path.join(format!("pool-{seat}"))).expect("made");
            write_held(&path.join(format!("pool-{seat}/{HELD}")), 0).expect("written");
        }
        config
    }

    #[test]
    fn what_is_borrowed_comes_back_under_pressure_and_counts_over_lives() {
        let place = tempfile::tempdir().expect("a directory");
        let config = config(place.path());
        let mut arbiter = Arbiter::new(&config).expect("shares");
        let quarter = CAPACITY / 4;
        assert_eq!(arbiter.ask(0, 0, Some(0), 0), Some(quarter));
        assert_eq!(arbiter.ask(0, 0, Some(quarter), 1), Some(CAPACITY), "nobody else is there");
        // Another life: what the first holds is not free before it gives it back.
        let mut arbiter = Arbiter::new(&config).expect("shares");
        assert_eq!(arbiter.ask(0, 1, Some(0), 0), Some(0));
        assert_eq!(arbiter.ask(0, 0, None, 0), Some(2 * quarter), "the other wants what it is guaranteed");
        assert_eq!(arbiter.ask(0, 1, Some(0), 0), Some(0), "not gone yet");
        assert_eq!(arbiter.ask(0, 0, Some(2 * quarter), 0), Some(2 * quarter));
        assert_eq!(arbiter.ask(0, 1, Some(0), 0), Some(2 * quarter));
        // It stores and wants more: what is above guarantees goes one to two, and the rest stays.
        let more = 2 * quarter + quarter * 2 / 3;
        assert_eq!(arbiter.ask(0, 1, Some(2 * quarter), 1), Some(2 * quarter));
        let first = arbiter.ask(0, 0, Some(2 * quarter), 0).expect("a limit");
        assert!(first.abs_diff(CAPACITY - more) < 8, "{first}");
        arbiter.ask(0, 0, Some(first), 0);
        assert_eq!(arbiter.ask(0, 1, Some(2 * quarter), 2), Some(CAPACITY - first));
    }
}
