//! Metrics through the `metrics` facade: the form of the tables that all crates publish by, and the primary's own table.
//!
//! A table says once what a metric is called, what it means and where its value is kept; what is described, published and answered over
//! the socket all comes from it. Names end as Prometheus wants it, and the end says the type: `_total` is a counter,
//! anything else in a table a gauge.

mod publisher;
mod table;

use crate::{Primary, Region};

pub use publisher::{Publisher, histogram};
pub use table::{Family, Metric, MetricKind, Table, Value};

/// What the primary tier shows: its table, its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryView {
    slots_free: u64,
    slots_writing: u64,
    slots_evictable: u64,
    slots_in_use: u64,
    slots_limbo: u64,
    slots_unready: u64,
    readers: u64,
    evicted: u64,
    room_refused: u64,
    readers_refused: u64,
    misuse: u64,
    table_bytes: u64,
    region_bytes: u64,
    ready_bytes: u64,
}

impl PrimaryView {
    /// What they show now. Asks for nothing that has to be counted first.
    pub fn of(primary: &Primary, region: &Region) -> Self {
        let stats = primary.stats();
        let ready = primary.resident().saturating_sub(primary.writing());
        let handed_out = primary.resident().saturating_add(primary.limbo()).saturating_add(primary.free());
        Self {
            slots_free: primary.free().into(),
            slots_writing: primary.writing().into(),
            slots_evictable: primary.evictable().into(),
            slots_in_use: ready.saturating_sub(primary.evictable()).into(),
            slots_limbo: primary.limbo().into(),
            slots_unready: primary.blocks().saturating_sub(handed_out).into(),
            readers: primary.readers(),
            evicted: stats.evicted,
            room_refused: stats.room_refused,
            readers_refused: stats.readers_refused,
            misuse: stats.misuse,
            table_bytes: primary.table_bytes() as u64,
            region_bytes: u64::from(region.slots()) * u64::from(region.slot_stride()),
            ready_bytes: region.ready_bytes(),
        }
    }
}

/// The primary tier of a pool.
pub static TABLE: Table<PrimaryView> = Table {
    labels: &["pool"],
    families: &[
        Family::by(
            "terrace_primary_slots",
            "Slots of the primary by what they hold: free, writing (bytes on their way in), evictable (readable, nobody reads), in_use \
             (readable, with readers), limbo (given up, the device has not let go), unready (memory not backed yet).",
            "state",
            &[
                ("free", |view| view.slots_free),
                ("writing", |view| view.slots_writing),
                ("evictable", |view| view.slots_evictable),
                ("in_use", |view| view.slots_in_use),
                ("limbo", |view| view.slots_limbo),
                ("unready", |view| view.slots_unready),
            ],
        ),
        Family::one("terrace_primary_readers", "Readers of all blocks in the primary together.", |view| view.readers),
        Family::one("terrace_primary_evictions_total", "Blocks evicted from the primary to make room.", |view| {
            view.evicted
        }),
        Family::one(
            "terrace_primary_room_refused_total",
            "Times that room was asked for and too little of the primary was free or evictable.",
            |view| view.room_refused,
        ),
        Family::one(
            "terrace_primary_readers_refused_total",
            "Readers refused because a block had as many as can be counted.",
            |view| view.readers_refused,
        ),
        Family::one(
            "terrace_primary_misuse_total",
            "Calls into the block table in a state in which they make no sense; anything but 0 is a fault of Terrace.",
            |view| view.misuse,
        ),
        Family::one("terrace_primary_table_bytes", "Memory that the block table takes.", |view| view.table_bytes),
        Family::one("terrace_primary_region_bytes", "Size of the region of slots.", |view| view.region_bytes),
        Family::one(
            "terrace_primary_ready_bytes",
            "Bytes of the region that memory backs so far; the rest follows behind the running daemon.",
            |view| view.ready_bytes,
        ),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_slots_add_up() {
        let mut primary = Primary::new(8, 4, terrace_config::Policy::Lru);
        let region = Region::null(8, 4096, 4096);
        let key = |name: u32| crate::Key::new(&name.to_be_bytes(), 0).expect("four bytes");
        let slots: Vec<_> = (0..5).filter_map(|name| primary.insert_writing(&key(name))).collect();
        slots.iter().skip(1).for_each(|slot| assert!(primary.publish(*slot)));
        assert!(primary.acquire(slots[2]) && primary.acquire(slots[2]));
        let view = PrimaryView::of(&primary, &region);
        let states = (view.slots_free, view.slots_writing, view.slots_evictable, view.slots_in_use, view.slots_unready);
        assert_eq!((states, view.readers), ((3, 1, 3, 1, 0), 2));
        assert!(primary.detach(slots[0]));
        assert_eq!(PrimaryView::of(&primary, &region).slots_limbo, 1);
    }
}
