//! Bytes: what the tier's files take on the disks, and what they may take.

use std::time::Duration;

use crate::clock::Time;

/// How long the room at which a disk was found full is taken for the capacity, before growing beyond it is tried again.
const FULL_HOLD: Duration = Duration::from_secs(60);

/// Counts allocated bytes as the device reports them. A fresh store is charged with `block_bytes` before it starts, and with what
/// its file really took when it is done; an evicted file is charged until it is gone.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// The most that [`Capacity::set_limit`] allows.
    most_bytes: u64,
    high: f64,
    low: f64,
    capacity_bytes: u64,
    high_bytes: u64,
    low_bytes: u64,
    used_bytes: u64,
    /// Payload and footer.
    file_bytes: u64,
    /// What one fresh store is charged with: the most that a file of this tier was seen to take, twice `file_bytes` at most, so
    /// that one odd report does not stop the tier.
    block_bytes: u64,
    /// The disk was found full at this use; until then this is the capacity.
    full: Option<(u64, Time)>,
    trimming: bool,
}

impl Capacity {
    /// Shares are cut to `0.0..=1.0`, the low one to the high one.
    pub(crate) fn new(capacity_bytes: u64, high: f64, low: f64, file_bytes: u64) -> Self {
        let mut capacity = Self {
            most_bytes: capacity_bytes,
            high,
            low,
            capacity_bytes: 0,
            high_bytes: 0,
            low_bytes: 0,
            used_bytes: 0,
            file_bytes,
            block_bytes: file_bytes,
            full: None,
            trimming: false,
        };
        capacity.set_limit(capacity_bytes);
        capacity
    }

    /// The capacity from now on, the one that was configured at most. What is above it is trimmed.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        let bytes = bytes.min(self.most_bytes);
        // A share of 1.0 must be the whole: f64 does not hold every u64.
        let share = |share: f64| {
            if share >= 1.0 { bytes } else { ((bytes as f64 * share.max(0.0)) as u64).min(bytes) }
        };
        self.capacity_bytes = bytes;
        // At least one block fits, or nothing could ever be stored.
        self.high_bytes = share(self.high).max(self.file_bytes.min(bytes));
        self.low_bytes = share(self.low).min(self.high_bytes);
    }

    pub(crate) const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(crate) const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// What a block's file takes at least: payload and footer.
    pub(crate) const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What one fresh store is charged with.
    pub(crate) const fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Whether a store may add this many bytes. One that adds nothing always may: it only takes a victim's place.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        bytes == 0 || self.used_bytes.saturating_add(bytes) <= self.limit_bytes()
    }

    pub(crate) const fn charge(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    pub(crate) const fn release(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    /// A store is done: its charge becomes what its file takes.
    pub(crate) fn settle(&mut self, charged_bytes: u64, allocated_bytes: u64) {
        self.release(charged_bytes);
        self.charge(allocated_bytes);
        self.block_bytes = self.block_bytes.max(allocated_bytes).min(self.file_bytes.saturating_mul(2));
    }

    /// The disk had no room for a store charged with `bytes`: what else is used is all there is, for a while, and a block of it
    /// goes.
    pub(crate) fn disk_full(&mut self, bytes: u64, now: Time) {
        self.full = Some((self.used_bytes.saturating_sub(bytes), now.plus(FULL_HOLD)));
        self.trimming = true;
    }

    /// Room is wanted that recycling alone does not give.
    pub(crate) const fn trim(&mut self) {
        self.trimming = true;
    }

    /// Whether blocks must go now without new ones taking their place. `leaving_bytes` are on their way out already.
    pub(crate) fn must_trim(&mut self, leaving_bytes: u64, now: Time) -> bool {
        if self.full.is_some_and(|(_, until)| now >= until) {
            self.full = None;
        }
        let stays = self.used_bytes.saturating_sub(leaving_bytes);
        if stays > self.limit_bytes() {
            self.trimming = true;
        }
        if self.trimming && stays <= self.target_bytes() {
            self.trimming = false;
        }
        self.trimming
    }

    fn limit_bytes(&self) -> u64 {
        match self.full {
            Some((bytes, _)) => bytes.min(self.high_bytes),
            None => self.high_bytes,
        }
    }

    /// Where trimming stops: the low watermark, and room for one block at least.
    fn target_bytes(&self) -> u64 {
        self.low_bytes.min(self.limit_bytes().saturating_sub(self.block_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_fits_up_to_the_high_watermark_and_not_beyond() {
        let mut capacity = Capacity::new(1000, 0.9, 0.5, 100);
        for _ in 0..9 {
            assert!(capacity.fits(100));
            capacity.charge(100);
        }
        assert!(!capacity.fits(100));
        assert!(!capacity.must_trim(0, Time(0)), "full is no reason to trim: stores recycle");
    }

    #[test]
    fn too_much_is_trimmed_to_the_low_watermark() {
        let mut capacity = Capacity::new(1000, 0.9, 0.5, 100);
        capacity.charge(1500);
        assert!(capacity.must_trim(0, Time(0)));
        capacity.release(900);
        assert!(capacity.must_trim(0, Time(0)), "600 is above the low watermark");
        assert!(!capacity.must_trim(100, Time(0)), "what is leaving counts as gone");
        assert!(!capacity.must_trim(0, Time(0)), "and it does not start again below the high one");
    }

    #[test]
    fn a_limit_is_lowered_and_raised_while_blocks_are_there() {
        let mut capacity = Capacity::new(1000, 0.9, 0.8, 100);
        capacity.charge(800);
        capacity.set_limit(500);
        assert!(!capacity.fits(1) && capacity.must_trim(0, Time(0)));
        assert!(
            capacity.must_trim(300, Time(0)) && !capacity.must_trim(450, Time(0)),
            "down to 400, and room for a block"
        );
        capacity.release(450);
        assert!(capacity.fits(100) && !capacity.fits(101));
        capacity.set_limit(5000);
        assert_eq!((capacity.capacity_bytes(), capacity.fits(550), capacity.fits(551)), (1000, true, false));
    }

    #[test]
    fn charges_follow_what_files_really_take() {
        let mut capacity = Capacity::new(10_000, 1.0, 1.0, 100);
        capacity.charge(100);
        capacity.settle(100, 150);
        assert_eq!((capacity.used_bytes(), capacity.block_bytes()), (150, 150));
        capacity.settle(0, 5000);
        assert_eq!(capacity.block_bytes(), 200, "bounded");
    }

    #[test]
    fn a_full_disk_lowers_the_capacity_for_a_while() {
        let mut capacity = Capacity::new(1000, 1.0, 1.0, 100);
        capacity.charge(500);
        capacity.disk_full(0, Time(0));
        assert!(!capacity.fits(1));
        assert!(capacity.must_trim(0, Time(0)));
        assert!(!capacity.must_trim(100, Time(0)));
        capacity.release(100);
        assert!(capacity.fits(100) && !capacity.fits(101));
        capacity.must_trim(0, Time(0).plus(FULL_HOLD));
        assert!(capacity.fits(600));
    }
}
