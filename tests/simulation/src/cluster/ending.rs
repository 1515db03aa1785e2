//! How a run ends: at rest, with nothing left in the bucket that nobody needs, and read back by nodes that know nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_primary::{BlockState, Key};
use terrace_tiering::{Lookup, LookupMode, RequestContext, RequestId, TierFilter};

use super::requests::Phase;
use super::world::World;
use crate::failure::Reason;

impl World {
    /// Ends every request, heals everything, and lets every deadline pass: then no node has anything left.
    pub fn come_to_rest(&mut self) -> Result<(), Reason> {
        self.heal();
        self.pass(Duration::from_millis(1));
        for node in 0..self.nodes.len() {
            while let Some((id, mut request)) = self.nodes[node].life.requests.pop_first() {
                if !request.finished {
                    self.finish(node, id, &mut request)?;
                }
                if matches!(request.phase, Phase::Loading { .. } | Phase::Storing { .. }) {
                    self.nodes[node].life.requests.insert(id, request);
                    self.advance_request(node, id)?;
                }
            }
        }
        // Longer than every deadline.
        for second in 0..600 {
            self.pass(Duration::from_secs(1));
            self.end_step()?;
            let busy = self.nodes.iter().any(|node| node.life.manager.has_pending_work());
            if second > 60 && !busy {
                break;
            }
        }
        (0..self.nodes.len()).try_for_each(|node| self.check_quiet(node))
    }

    fn check_quiet(&self, node: usize) -> Result<(), Reason> {
        let manager = &self.nodes[node].life.manager;
        let primary = manager.primary();
        let (readers, writing, limbo) = (primary.readers(), primary.writing(), primary.limbo());
        if readers > 0 || writing > 0 || limbo > 0 {
            let text = format!("node {node}: {readers} readers, {writing} writing slots, {limbo} in limbo");
            return Err(Reason::Leak(text));
        }
        for tier in manager.stats().tiers {
            let jobs = tier.promotions.queued + tier.promotions.running + tier.cascades.running + tier.tier.in_flight;
            if jobs > 0 {
                return Err(Reason::Leak(format!("node {node}: {tier:?}")));
            }
        }
        Ok(())
    }

    /// Waits until the collectors have done all that they have to do. Then every segment in the bucket lives, and they take no more room
    /// than they may.
    pub fn collect(&mut self) -> Result<(), Reason> {
        // A day's bytes may be used up, and then nobody collects: nodes that start anew may read and write again.
        let object = self.settings.object_mut();
        let budgets = [object.read_bytes_per_day.take(), object.write_bytes_per_day.take()];
        if budgets.iter().any(Option::is_some) {
            (0..self.nodes.len()).try_for_each(|node| self.restart(node))?;
        }
        let object = self.settings.object();
        let most = object.orphan_age * 3 + object.log_retention * 4 + object.compaction_interval * 4;
        let until = self.now + most;
        let step = Duration::from_secs(10);
        while self.now < until {
            self.pass(step);
            self.end_step()?;
        }
        let room = (object_room(self.settings.object()), self.settings.object().capacity_bytes);
        let bucket = self.bucket.lock();
        for (at, ledger) in bucket.ledgers.iter().enumerate() {
            let objects = bucket.names(ledger.names.segments());
            let nobodys = objects
                .iter()
                .find(|path| !ledger.names.parse_segment(path).is_some_and(|id| ledger.may_stay(id, self.now)));
            if let Some(path) = nobodys {
                return Err(Reason::Leak(format!("{path} is nobody's, {most:?} after the last fault")));
            }
            let live = ledger.live_bytes();
            if live > room.0 {
                return Err(Reason::Capacity(format!(
                    "{live} bytes live in namespace {at}, {} of {} allowed",
                    room.0, room.1
                )));
            }
        }
        Ok(())
    }

    /// A node of each namespace starts anew and knows exactly what lives, with the right bytes.
    pub fn read_back(&mut self) -> Result<(), Reason> {
        self.settings.object_mut().read_requests_per_second = 0;
        // The bucket alone is asked: disks may know more than it does, and less.
        self.settings.leave_disks_out();
        // What is asked is what lives, not how fast it comes.
        (self.settings.config.breaker.slow_factor, self.settings.config.breaker.stall) = (0, Duration::ZERO);
        for namespace in 0..self.settings.namespaces {
            let node = usize::from(namespace);
            self.restart(node)?;
            self.pass(Duration::from_secs(10));
            self.end_step()?;
            let (keys, exact) = self.live_keys(namespace);
            for key in keys {
                let found = self.find(node, key)?;
                self.counts.read_back += u64::from(found);
                // A collector may have removed its segment since: too old by now.
                if !found && exact && self.live_keys(namespace).0.contains(&key) {
                    return Err(Reason::Contract(format!("{key} lives in namespace {namespace} and is not found")));
                }
            }
            // What was removed last is folded by now; a step that has polled already does so no more.
            self.end_step()?;
            self.pass(Duration::from_secs(60));
            self.end_step()?;
            self.end_step()?;
            let known = self.nodes[node].life.manager.stats().tiers.iter().map(|tier| tier.tier.blocks).sum::<u64>();
            let (named, still) = self.live_keys(namespace);
            let named = named.len() as u64;
            if exact && still && known != named {
                return Err(Reason::Contract(format!(
                    "namespace {namespace} has {named} blocks, a new node knows {known}"
                )));
            }
        }
        self.come_to_rest()
    }

    /// Blocks that live; whether no fault has touched one of their segments.
    fn live_keys(&self, namespace: u8) -> (BTreeSet<Key>, bool) {
        let bucket = self.bucket.lock();
        let ledger = &bucket.ledgers[usize::from(namespace)];
        let of = |record: &std::sync::Arc<terrace_tiers::object::SegmentRecord>| {
            let record = std::sync::Arc::clone(record);
            (0..record.blocks()).filter_map(move |position| record.key(position)).collect::<Vec<_>>()
        };
        (ledger.live().flat_map(of).collect(), !ledger.has_spoiled())
    }

    /// Looks a block up, alone.
    fn find(&mut self, node: usize, key: Key) -> Result<bool, Reason> {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let begun = self.nodes[node].life.manager.begin_request(RequestContext { id, tiers: TierFilter::ALL });
        begun.map_err(|error| Reason::Contract(format!("begin_request: {error}")))?;
        let mut answers = Vec::new();
        for _ in 0..1000 {
            let looked = self.nodes[node].life.manager.lookup(id, &[key], LookupMode::Each, &mut answers);
            looked.map_err(|error| Reason::Contract(format!("lookup: {error}")))?;
            if !answers.iter().any(|answer| answer.is_unresolved()) {
                break;
            }
            self.pass(Duration::from_millis(10));
            self.end_step()?;
        }
        self.nodes[node].life.manager.finish_request(id);
        match answers.first() {
            Some(Lookup::Hit) => {
                let primary = self.nodes[node].life.manager.primary();
                let slot = primary.find(&key).filter(|slot| matches!(primary.state(*slot), BlockState::Ready { .. }));
                let slot = slot.ok_or_else(|| Reason::Contract(format!("{key} is a Hit and not readable")))?;
                self.check_bytes(node, &key, slot)?;
                Ok(true)
            }
            Some(Lookup::Miss) => Ok(false),
            _ => Err(Reason::Unresolved(format!("{key} after 10 s on a healed bucket"))),
        }
    }
}

/// What the live segments may take when a collector has had its time.
fn object_room(object: &terrace_config::ObjectConfig) -> u64 {
    (object.capacity_bytes as f64 * object.high_watermark) as u64
}
