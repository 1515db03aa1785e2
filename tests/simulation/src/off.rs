//! What can be left out of a seed's world, to find what a failure needs.

use std::fmt;

use crate::cluster::faults as bucket;
use crate::cluster::settings::Settings as ClusterSettings;
use crate::connector::settings::Settings as ConnectorSettings;
use crate::disk::{KIND_COUNT, Kind};
use crate::run::Scene;
use crate::settings::Settings;
use crate::socket::settings::Settings as SocketSettings;

/// Takes a part out of the settings.
type LeaveOut<S = Settings> = fn(&mut S);

/// Parts of the world beside the kinds of faults.
const PARTS: [(&str, LeaveOut); 12] = [
    ("weather", |settings| settings.weather_per_mille = 0),
    ("crashes", |settings| settings.crash_per_mille = 0),
    ("power-loss", |settings| settings.power_loss_per_mille = 0),
    ("restarts", |settings| settings.restart_per_mille = 0),
    ("catalog", |settings| settings.catalog = false),
    ("namespaces", |settings| settings.namespaces = 1),
    ("capacity-changes", |settings| settings.capacity_changes = false),
    ("disorder", |settings| settings.disorder = false),
    ("requests", |settings| settings.requests = 1),
    ("resets", |settings| settings.resets = false),
    ("pins", |settings| settings.pins = false),
    ("long-chains", |settings| settings.chain_blocks = settings.chain_blocks.min(4)),
];

/// Parts of a cluster's world beside the kinds of faults.
const CLUSTER_PARTS: [(&str, LeaveOut<ClusterSettings>); 12] = [
    ("bucket.weather", |settings| settings.weather_per_mille = 0),
    ("bucket.crashes", |settings| settings.crash_per_mille = 0),
    ("bucket.restarts", |settings| settings.restart_per_mille = 0),
    ("bucket.stops", |settings| settings.stop_per_mille = 0),
    ("bucket.jumps", |settings| settings.jump_per_mille = 0),
    ("bucket.skew", |settings| settings.skew_ms = 0),
    ("bucket.namespaces", |settings| settings.namespaces = 1),
    ("bucket.nodes", |settings| settings.nodes = settings.nodes.min(2).max(settings.namespaces.into())),
    ("bucket.requests", |settings| settings.requests = 1),
    ("bucket.long-chains", |settings| settings.chain_blocks = settings.chain_blocks.min(4)),
    ("bucket.hedges", ClusterSettings::leave_hedges_out),
    ("bucket.disks", ClusterSettings::leave_disks_out),
];

/// Parts of an engine's world beside those of its disks.
const CONNECTOR_PARTS: [(&str, LeaveOut<ConnectorSettings>); 10] = [
    ("connector.failing-copies", |settings| settings.copies.fail_per_mille = 0),
    ("connector.refused-copies", |settings| settings.copies.refuse_per_mille = 0),
    ("connector.slow-copies", |settings| settings.copies.slow_per_mille = 0),
    ("connector.hung-copies", |settings| settings.copies.hang_per_mille = 0),
    ("connector.late-reports", |settings| settings.late_report_per_mille = 0),
    ("connector.false-reports", |settings| settings.false_report_per_mille = 0),
    ("connector.aborts", |settings| settings.abort_per_mille = 0),
    ("connector.preemptions", |settings| settings.preempt_per_mille = 0),
    ("connector.prefix-cache", |settings| settings.prefix_cache = false),
    ("connector.decoding", |settings| settings.prompt_only = true),
];

/// Parts of a daemon's world beside those of its disks.
const SOCKET_PARTS: [(&str, LeaveOut<SocketSettings>); 10] = [
    ("socket.delays", |settings| settings.delay_per_mille = 0),
    ("socket.cuts", |settings| settings.cut_per_mille = 0),
    ("socket.deaths", |settings| settings.death_per_mille = 0),
    ("socket.stalls", |settings| settings.stall_per_mille = 0),
    ("socket.aborts", |settings| settings.abort_per_mille = 0),
    ("socket.failing-copies", |settings| settings.fail_per_mille = 0),
    ("socket.broken-rules", |settings| settings.misuse_per_mille = 0),
    ("socket.engines", |settings| settings.engines = 1),
    ("socket.clients", |settings| settings.clients = 0),
    ("socket.deafness", |settings| settings.unheard_per_mille = 0),
];

/// How many things can be left out of a world of disks: each kind of fault, then the parts.
const DISKS: usize = KIND_COUNT + PARTS.len();
/// And of a cluster's, behind those.
const CLUSTER_END: usize = DISKS + bucket::KIND_COUNT + CLUSTER_PARTS.len();
/// And of an engine's, behind those.
const CONNECTOR_END: usize = CLUSTER_END + CONNECTOR_PARTS.len();
/// And of a daemon's, behind those.
const COUNT: usize = CONNECTOR_END + SOCKET_PARTS.len();
const _: () = assert!(COUNT <= 128, "a bit each");

/// A set of things that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Off(u128);

impl Off {
    /// The whole world.
    pub const NOTHING: Self = Self(0);

    /// Every single thing that could be left out in addition, of such a world.
    pub fn one_more(self, scene: Scene) -> impl Iterator<Item = Self> {
        let (of, and) = match scene {
            Scene::Disks => (0..DISKS, 0..0),
            Scene::Cluster => (0..CLUSTER_END, 0..0),
            Scene::Connector => (0..DISKS, CLUSTER_END..CONNECTOR_END),
            Scene::Socket => (0..DISKS, CONNECTOR_END..COUNT),
        };
        of.chain(and).filter(move |at| self.0 & (1 << at) == 0).map(move |at| Self(self.0 | 1 << at))
    }

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set that a list of names stands for, as [`Off`] is displayed. `None`: a name is unknown.
    pub fn parse(list: &str) -> Option<Self> {
        let known: Vec<String> = (0..COUNT).map(name).collect();
        list.split(',').try_fold(Self::NOTHING, |off, wanted| {
            let at = known.iter().position(|name| name == wanted)?;
            Some(Self(off.0 | 1 << at))
        })
    }

    /// Takes the things out of the settings.
    pub(crate) fn apply(self, settings: &mut Settings) {
        for at in (0..DISKS).filter(|at| self.0 & (1 << at) != 0) {
            match (Kind::all().nth(at), PARTS.get(at.wrapping_sub(KIND_COUNT))) {
                (Some(kind), _) => settings.faults.leave_out(kind),
                (None, Some((_, leave_out))) => leave_out(settings),
                (None, None) => {}
            }
        }
    }

    /// Takes the things out of an engine's settings, those of its disks among them.
    pub(crate) fn apply_to_connector(self, settings: &mut ConnectorSettings) {
        self.apply(&mut settings.disks);
        for (at, (_, leave_out)) in CONNECTOR_PARTS.iter().enumerate() {
            if self.0 & (1 << (at + CLUSTER_END)) != 0 {
                leave_out(settings);
            }
        }
    }

    /// Takes the things out of a daemon's settings, those of its disks among them.
    pub(crate) fn apply_to_socket(self, settings: &mut SocketSettings) {
        self.apply(&mut settings.disks);
        for (at, (_, leave_out)) in SOCKET_PARTS.iter().enumerate() {
            if self.0 & (1 << (at + CONNECTOR_END)) != 0 {
                leave_out(settings);
            }
        }
    }

    /// Takes the things out of a cluster's settings, those of its disks among them.
    pub(crate) fn apply_to_cluster(self, settings: &mut ClusterSettings) {
        if let Some(disks) = &mut settings.disks {
            self.apply(disks);
        }
        for at in (0..CLUSTER_END - DISKS).filter(|at| self.0 & (1 << (at + DISKS)) != 0) {
            match (bucket::Kind::all().nth(at), CLUSTER_PARTS.get(at.wrapping_sub(bucket::KIND_COUNT))) {
                (Some(kind), _) => settings.faults.leave_out(kind),
                (None, Some((_, leave_out))) => leave_out(settings),
                (None, None) => {}
            }
        }
    }
}

fn name(at: usize) -> String {
    if let Some(at) = at.checked_sub(CONNECTOR_END) {
        return SOCKET_PARTS.get(at).map_or_else(String::new, |(name, _)| (*name).to_owned());
    }
    if let Some(at) = at.checked_sub(CLUSTER_END) {
        return CONNECTOR_PARTS.get(at).map_or_else(String::new, |(name, _)| (*name).to_owned());
    }
    if let Some(at) = at.checked_sub(DISKS) {
        return match bucket::Kind::all().nth(at) {
            Some(kind) => format!("bucket.{}", kind.name()),
            None => CLUSTER_PARTS.get(at - bucket::KIND_COUNT).map_or_else(String::new, |(name, _)| (*name).to_owned()),
        };
    }
    match Kind::all().nth(at) {
        Some(kind) => format!("{kind:?}"),
        None => PARTS.get(at - KIND_COUNT).map_or_else(String::new, |(name, _)| (*name).to_owned()),
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = (0..COUNT).filter(|at| self.0 & (1 << at) != 0).map(name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_read_as_it_is_written() {
        for list in ["ReadRot,weather,pins", "bucket.Hang,bucket.stops", "ReadRot,connector.aborts", "socket.cuts"] {
            assert_eq!(Off::parse(list).unwrap().to_string(), list);
        }
        assert_eq!(Off::parse("rain"), None);
        for (scene, other) in [
            (Scene::Disks, Scene::Connector),
            (Scene::Cluster, Scene::Socket),
            (Scene::Connector, Scene::Cluster),
            (Scene::Socket, Scene::Connector),
        ] {
            let all = Off::NOTHING.one_more(scene).fold(Off::NOTHING, Off::and);
            assert_eq!(Off::parse(&all.to_string()), Some(all));
            assert_eq!((all.one_more(scene).count(), all.one_more(other).count() > 0), (0, true));
        }
    }
}
