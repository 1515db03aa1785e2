//! Slots by age, with what is pinned set aside.

use crate::links::Links;
use crate::slot::SlotId;

/// Lists of one [`Aged`].
pub(super) const LISTS: u8 = 3;

/// Slots in order of age inside a [`Links`] that several may share: three lists from `first` on.
///
/// A pinned slot that is met at the old end is *parked*: it is older than every slot of the main list, and is not
/// looked at again before it is unpinned. Then it is *overdue*, and leaves before all others. So a tier that hangs on a
/// quarter of the slots does not make each eviction walk over them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aged {
    first: u8,
}

impl Aged {
    pub(super) const fn new(first: u8) -> Self {
        Self { first }
    }

    const fn main(self) -> u8 {
        self.first
    }

    const fn parked(self) -> u8 {
        self.first + 1
    }

    const fn overdue(self) -> u8 {
        self.first + 2
    }

    /// Whether `slot` is here.
    pub(super) fn contains(self, links: &Links, slot: SlotId) -> bool {
        links.list(slot.0).is_some_and(|list| (self.first..self.first + LISTS).contains(&list))
    }

    /// Slots here.
    pub(super) fn len(self, links: &Links) -> u32 {
        links.len(self.main()) + links.len(self.parked()) + links.len(self.overdue())
    }

    /// Makes `slot` the youngest here; takes it from wherever it is.
    pub(super) fn push(self, links: &mut Links, slot: SlotId) {
        links.move_front(self.main(), slot.0);
    }

    /// `slot` became evictable.
    pub(super) fn unpinned(self, links: &mut Links, slot: SlotId) {
        if links.list(slot.0) == Some(self.parked()) {
            links.move_front(self.overdue(), slot.0);
        }
    }

    /// Takes the oldest evictable slot out and parks the older ones.
    pub(super) fn pop(self, links: &mut Links, evictable: &dyn Fn(SlotId) -> bool) -> Option<SlotId> {
        while let Some(row) = links.pop_back(self.overdue()).or_else(|| links.pop_back(self.main())) {
            if evictable(SlotId(row)) {
                return Some(SlotId(row));
            }
            links.push_front(self.parked(), row);
        }
        None
    }

    /// Puts back what [`Aged::pop`] took; the last taken first.
    pub(super) fn put_back(self, links: &mut Links, slot: SlotId) {
        links.push_back(self.overdue(), slot.0);
    }
}
