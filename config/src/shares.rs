//! What part of the capacities a tenant's namespace gets in a daemon.

use std::ops::Range;

use crate::model::{Config, TenantConfig};
use crate::tenant_keys::OTHERS;

/// The part of one namespace, as fractions of each capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// It can have this much at any time, whatever others do.
    pub guaranteed: f64,
    /// It never has more, even if others leave it idle.
    pub maximum: f64,
    /// Its part of what is divided once and for all: the primary, memory tiers, buckets.
    pub fixed: f64,
}

impl Config {
    /// Tenants with a place of their own in the daemon, in the order of their places.
    fn guaranteed(&self) -> impl Iterator<Item = &TenantConfig> {
        self.tenants.iter().filter(|tenant| tenant.guaranteed > 0.0 && tenant.name != OTHERS)
    }

    /// Whether capacities are shared out by `[[tenant]]`; else each namespace has an equal part.
    pub fn has_shares(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.guaranteed > 0.0)
    }

    /// The places, of `0..server.pools`, that a tenant's namespaces may take: one of its own, or those that are left to all others.
    pub fn seats(&self, tenant: &str) -> Range<u32> {
        let own = self.guaranteed().position(|entry| entry.name == tenant).and_then(|at| u32::try_from(at).ok());
        let first = u32::try_from(self.guaranteed().count()).unwrap_or(u32::MAX);
        let pools = self.server.pools.max(1);
        own.map_or(first.min(pools)..pools, |at| at..at + 1)
    }

    /// The share of a namespace at this place. `None`: capacities are not shared out, or there is nothing for it.
    pub fn share_at(&self, seat: u32) -> Option<Share> {
        if !self.has_shares() {
            return None;
        }
        let others = self.others();
        let own = self.guaranteed().nth(seat as usize);
        let (guaranteed, maximum) = own.map_or(others, |tenant| (tenant.guaranteed, tenant.maximum));
        let named: f64 = self.guaranteed().map(|tenant| tenant.guaranteed).sum();
        let all = named + others.0 * f64::from(self.other_seats());
        (guaranteed > 0.0).then(|| Share {
            guaranteed,
            maximum,
            fixed: (guaranteed / all.max(guaranteed)).min(maximum),
        })
    }

    /// Guaranteed and maximum of each namespace whose tenant has no place of its own: what is written, or an equal part of what is left.
    fn others(&self) -> (f64, f64) {
        match self.tenants.iter().find(|tenant| tenant.name == OTHERS) {
            Some(tenant) if tenant.guaranteed > 0.0 => (tenant.guaranteed, tenant.maximum),
            entry => {
                let named: f64 = self.guaranteed().map(|tenant| tenant.guaranteed).sum();
                let each = (1.0 - named).max(0.0) / f64::from(self.other_seats().max(1));
                let maximum = entry.map_or(1.0, |tenant| tenant.maximum);
                (each.min(maximum), maximum)
            }
        }
    }

    fn other_seats(&self) -> u32 {
        let named = u32::try_from(self.guaranteed().count()).unwrap_or(u32::MAX);
        self.server.pools.max(1).saturating_sub(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pools: u32, tenants: &str) -> Config {
        let text = format!("[primary]\nblocks = 100\n[server]\npools = {pools}\n{tenants}");
        Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"))
    }

    fn tenant(name: &str, guaranteed: f64, maximum: f64) -> String {
        format!("[[tenant]]\nname = \"{name}\"\nguaranteed = {guaranteed:?}\nmaximum = {maximum:?}\n")
    }

    #[test]
    fn named_tenants_have_places_of_their_own_and_the_others_the_rest() {
        let config =
            config(4, &(tenant("a", 0.25, 0.5) + &tenant("b", 0.25, 1.0) + "[[tenant]]\nname = \"keys only\"\n"));
        assert_eq!((config.seats("a"), config.seats("b"), config.seats("c")), (0..1, 1..2, 2..4));
        assert_eq!(config.seats("keys only"), 2..4);
        assert_eq!(config.share_at(0), Some(Share { guaranteed: 0.25, maximum: 0.5, fixed: 0.25 }));
        assert_eq!(config.share_at(3), Some(Share { guaranteed: 0.25, maximum: 1.0, fixed: 0.25 }));
    }

    #[test]
    fn what_nobody_is_guaranteed_is_divided_as_the_guarantees_are() {
        let config = config(3, &(tenant("a", 0.3, 0.4) + &tenant("b", 0.2, 1.0) + &tenant("*", 0.1, 0.1)));
        let fixed: Vec<f64> = (0..3).filter_map(|seat| config.share_at(seat)).map(|share| share.fixed).collect();
        // Up to each one's maximum.
        assert_eq!(fixed, [0.4, 0.2 / 0.6, 0.1]);
    }

    #[test]
    fn without_shares_all_places_are_everybodys() {
        let config = config(3, "[[tenant]]\nname = \"a\"\n");
        assert_eq!((config.has_shares(), config.seats("a"), config.share_at(0)), (false, 0..3, None));
    }

    #[test]
    fn where_all_is_taken_others_have_nothing() {
        let config = config(2, &tenant("a", 1.0, 1.0));
        assert_eq!((config.seats("b"), config.share_at(1)), (1..2, None));
    }
}
