//! What is registered when, and that requests use it.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::IoUring;
use terrace_config::Choice;
use terrace_primary::{Region, RegionOptions, SlotId};

use super::*;
use crate::nvme::device::{Buffer, ReadFile, WriteFile};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Slots of 12 KiB in pieces of 40 KiB at most: 3 slots a piece.
const STRIDE: usize = 3 * PAGE;
const MOST: usize = 10 * PAGE;
const PIECE: usize = 3 * STRIDE;

fn region(slots: u32, slot_stride: usize) -> Arc<Region> {
    let options = RegionOptions {
        slots,
        slot_stride: slot_stride as u32,
        block_bytes: slot_stride as u32,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    Region::create(&options, &|_, _| {}).expect("a region")
}

fn range(region: &Region) -> MemoryRange {
    let (start, bytes) = region.parts().expect("it holds bytes");
    MemoryRange { start, bytes, unit_bytes: region.slot_stride() as usize }
}

/// Names `pages` of a range without touching them.
#[expect(unsafe_code, reason = "the regions of these tests outlive every buffer")]
fn buffer(range: MemoryRange, page: usize, pages: usize) -> Buffer {
    assert!((page + pages) * PAGE <= range.bytes);
    // SAFETY: inside the range, and nobody else uses it.
    unsafe { Buffer::new(range.start.add(page * PAGE), (pages * PAGE) as u32) }
}

fn nowhere(bytes: usize, unit_bytes: usize) -> MemoryRange {
    MemoryRange { start: NonNull::dangling(), bytes, unit_bytes }
}

#[test]
fn no_slot_lies_in_two_pieces_and_every_region_fits_the_table() {
    let footers = nowhere(PAGE, PAGE);
    let pieces = |bytes, unit| {
        let plan = Registered::plan(footers, Some(nowhere(bytes, unit))).expect("it fits");
        assert_eq!(plan.piece_bytes() % unit, 0, "{bytes} bytes in slots of {unit}");
        assert!(plan.piece_bytes() <= 1 << 30 && plan.pieces() < 1 << 14);
        assert!(plan.pieces() * plan.piece_bytes() >= bytes && (plan.pieces() - 1) * plan.piece_bytes() < bytes);
        (plan.pieces(), plan.piece_bytes() / MIB)
    };
    assert_eq!(pieces(64 << 30, 2 * MIB), (1024, 64));
    assert_eq!(pieces(30 * MIB, 3 * MIB), (1, 63));
    assert_eq!(pieces(500 * MIB, 100 * MIB), (5, 100));
    assert_eq!(pieces(4 << 40, 2 * MIB).1, 258);
    assert!(Registered::plan(footers, Some(nowhere(17 << 40, 2 * MIB))).is_err());
    assert!(Registered::plan(footers, Some(nowhere(8 << 30, 2 << 30))).is_err(), "a slot is longer than a buffer");
}

/// A ring and what is planned for it; dropped in this order.
struct Planned {
    registered: Registered,
    ring: IoUring,
    _slots: Arc<Region>,
    _footers: Arc<Region>,
}

impl Planned {
    /// `None` where the system has no io_uring.
    fn new(slots: u32) -> Option<Self> {
        let ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(error) => {
                eprintln!("*** NOT RUN: no io_uring here: {error} ***");
                return None;
            }
        };
        let (footers, slots) = (region(4, PAGE), region(slots, STRIDE));
        let registered =
            Registered::plan_in_pieces(MOST, range(&footers), Some(range(&slots))).expect("a few pages fit");
        Some(Self { registered, ring, _slots: slots, _footers: footers })
    }

    #[expect(unsafe_code, reason = "the regions of these tests outlive their rings")]
    fn start(&mut self) -> Registration {
        // SAFETY: the regions are dropped last.
        unsafe { self.registered.start(&self.ring.submitter()) }.expect("a table")
    }

    #[expect(unsafe_code, reason = "the regions of these tests outlive their rings")]
    fn next(&mut self, ready_bytes: usize) -> Registration {
        // SAFETY: the regions are dropped last.
        unsafe { self.registered.next(&self.ring.submitter(), ready_bytes) }.expect("a few pages can be pinned")
    }

    /// The index of each slot's registered buffer.
    fn indices(&self) -> Vec<Option<u16>> {
        let slots = range(&self._slots);
        (0..self._slots.slots() as usize).map(|slot| self.registered.index_of(&buffer(slots, slot * 3, 3))).collect()
    }

    fn footer(&self) -> Option<u16> {
        self.registered.index_of(&buffer(range(&self._footers), 3, 1))
    }
}

#[test]
fn pieces_are_registered_one_by_one_as_they_become_ready() {
    let Some(mut planned) = Planned::new(7) else { return };
    assert_eq!((planned.footer(), planned.indices()), (None, vec![None; 7]));
    assert_eq!(planned.start(), Registration::More);
    assert_eq!((planned.footer(), planned.indices()), (Some(0), vec![None; 7]));
    for not_enough in [0, PIECE - 1] {
        assert_eq!(planned.next(not_enough), Registration::Waits);
        assert_eq!(planned.indices(), vec![None; 7]);
    }
    // All is ready: one piece a call all the same.
    let [first, second, third] = [Some(1), Some(2), Some(3)];
    assert_eq!(planned.next(7 * STRIDE), Registration::More);
    assert_eq!(planned.indices(), [first, first, first, None, None, None, None]);
    assert_eq!(planned.next(2 * PIECE), Registration::More);
    assert_eq!(planned.next(7 * STRIDE - 1), Registration::Waits);
    assert_eq!(planned.indices(), [first, first, first, second, second, second, None]);
    assert_eq!(planned.next(7 * STRIDE), Registration::Done);
    assert_eq!(planned.indices(), [first, first, first, second, second, second, third]);
    assert_eq!(planned.next(7 * STRIDE), Registration::Done);
    assert_eq!(planned.registered.bytes(), 4 * PAGE + 7 * STRIDE);
    // What reaches beyond its piece is in none.
    let slots = range(&planned._slots);
    assert_eq!(planned.registered.index_of(&buffer(slots, 8, 2)), None);
    assert_eq!(planned.registered.index_of(&buffer(nowhere(MIB, MIB), 0, 1)), None);
}

#[test]
fn without_empty_tables_all_is_registered_once_all_is_ready() {
    let Some(mut planned) = Planned::new(7) else { return };
    let footers = range(&planned._footers);
    let slots = Some(range(&planned._slots));
    planned.registered = Registered::plan_in_pieces(MOST, footers, slots).expect("a few pages fit").whole();
    assert_eq!(planned.next(2 * PIECE), Registration::Waits);
    assert_eq!((planned.footer(), planned.indices()), (None, vec![None; 7]));
    assert_eq!(planned.next(7 * STRIDE), Registration::Done);
    assert_eq!((planned.footer(), planned.indices()[6]), (Some(0), Some(3)));
    assert_eq!(planned.next(7 * STRIDE), Registration::Done);
}

struct Bench {
    device: UringDevice,
    slots: Arc<Region>,
    footers: Arc<Region>,
}

impl Bench {
    /// Payload and footer of slot `slot`.
    fn buffers(&self, slot: usize) -> (Buffer, Buffer) {
        (buffer(range(&self.slots), slot * 3, 3), buffer(range(&self.footers), 0, 1))
    }

    fn write(&self, slot: usize) -> FileOp {
        let (payload, footer) = self.buffers(slot);
        let (temp, target) = (RelPath::new("temp").expect("a name"), RelPath::new("file").expect("a name"));
        FileOp::Write(WriteFile { temp, target, recycle: None, payload, footer })
    }

    fn read(&self, slot: usize) -> FileOp {
        let (payload, footer) = self.buffers(slot);
        FileOp::Read(ReadFile { path: RelPath::new("file").expect("a name"), payload, footer })
    }

    /// The requests of an operation that move bytes.
    fn moves(&self, op: FileOp) -> Vec<u8> {
        let registered = self.device.registered.as_ref();
        let place = Place { index: 0, root: types::Fd(0), direct: true, registered };
        let (mut chain, mut entries) = (Chain::idle(), Vec::new());
        chain.start(0, op);
        chain.requests(&place, &mut entries);
        let moves = [opcode::Read::CODE, opcode::ReadFixed::CODE, opcode::Write::CODE, opcode::WriteFixed::CODE];
        entries.iter().map(|entry| entry.get_opcode() as u8).filter(|code| moves.contains(code)).collect()
    }

    fn run(&mut self, op: FileOp) {
        self.device.submit(0, op);
        let mut done = Vec::new();
        while done.is_empty() {
            self.device.wait(Some(Duration::from_secs(10)));
            self.device.reap(&mut done);
        }
        assert!(done[0].result.is_ok(), "{done:?}");
    }

    /// Writes slot 0 to a file and reads it into slot 1.
    fn round_trip(&mut self, content: u8) {
        assert!(self.slots.write_slot(SlotId(0), &[content; STRIDE]));
        self.run(self.write(0));
        self.run(self.read(1));
        let mut bytes = [0; STRIDE];
        assert!(self.slots.read_slot(SlotId(1), &mut bytes) && bytes == [content; STRIDE]);
    }
}

#[test]
fn requests_use_what_is_registered_and_do_without_until_then() {
    let root = tempfile::tempdir_in(std::env::temp_dir()).expect("a folder");
    let fd = File::open(root.path()).expect("it is there").into();
    let device = match UringDevice::new(fd, false, 4, Arc::new(Waker::new().expect("an eventfd"))) {
        Ok(device) => device,
        Err(error) => return eprintln!("*** NOT RUN: no io_uring here: {error} ***"),
    };
    let mut bench = Bench { device, slots: region(6, STRIDE), footers: region(1, PAGE) };
    let plain = [[opcode::Write::CODE; 2], [opcode::Read::CODE; 2]];
    let fixed = [[opcode::WriteFixed::CODE; 2], [opcode::ReadFixed::CODE; 2]];
    let moves = |bench: &Bench| [bench.moves(bench.write(0)), bench.moves(bench.read(1))];

    assert_eq!(moves(&bench), plain);
    bench.round_trip(1);
    // SAFETY: the regions are dropped after the device.
    #[expect(unsafe_code, reason = "the regions of these tests outlive their rings")]
    let started = unsafe { bench.device.announce(range(&bench.footers), Some(range(&bench.slots))) };
    assert_eq!(started, Registration::More);
    let only_the_footer = [
        [opcode::Write::CODE, opcode::WriteFixed::CODE], //
        [opcode::Read::CODE, opcode::ReadFixed::CODE],
    ];
    assert_eq!(moves(&bench), only_the_footer);
    bench.round_trip(2);
    assert_eq!(bench.device.register_next(0), Registration::Waits);
    assert_eq!(bench.device.register_next(u64::MAX), Registration::Done);
    assert_eq!(moves(&bench), fixed);
    bench.round_trip(3);
}
