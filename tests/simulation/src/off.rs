//! What can be left out of a seed's world, to find what a failure needs.

use std::fmt;

use crate::disk::{KIND_COUNT, Kind};
use crate::settings::Settings;

/// Takes a part out of the settings.
type LeaveOut = fn(&mut Settings);

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

/// How many things can be left out: each kind of fault, then the parts.
const COUNT: usize = KIND_COUNT + PARTS.len();
const _: () = assert!(COUNT <= 64, "a bit each");

/// A set of things that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Off(u64);

impl Off {
    /// The whole world.
    pub const NOTHING: Self = Self(0);

    /// Every single thing that could be left out in addition.
    pub fn one_more(self) -> impl Iterator<Item = Self> {
        (0..COUNT).filter(move |at| self.0 & (1 << at) == 0).map(move |at| Self(self.0 | 1 << at))
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
        for at in (0..COUNT).filter(|at| self.0 & (1 << at) != 0) {
            match (Kind::all().nth(at), PARTS.get(at.wrapping_sub(KIND_COUNT))) {
                (Some(kind), _) => settings.faults.leave_out(kind),
                (None, Some((_, leave_out))) => leave_out(settings),
                (None, None) => {}
            }
        }
    }
}

fn name(at: usize) -> String {
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
        let off = Off::parse("ReadRot,weather,pins").unwrap();
        assert_eq!(off.to_string(), "ReadRot,weather,pins");
        assert_eq!(Off::parse("rain"), None);
        let all = Off::NOTHING.one_more().fold(Off::NOTHING, Off::and);
        assert_eq!(Off::parse(&all.to_string()), Some(all));
        assert_eq!(all.one_more().count(), 0);
    }
}
