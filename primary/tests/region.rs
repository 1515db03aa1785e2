//! The region on this machine, whatever it grants.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, ftruncate};
use terrace_config::Choice;
use terrace_primary::{PageKind, PrimaryError, Region, RegionOptions, SlotId};

fn options(slots: u32) -> RegionOptions {
    RegionOptions {
        slots,
        slot_stride: 8192,
        block_bytes: 5000,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 2,
    }
}

fn quiet(_: u64, _: u64) {}

fn refusal(options: &RegionOptions) -> PrimaryError {
    Region::create(options, &quiet).expect_err("must be refused")
}

#[test]
fn slots_are_aligned_apart_and_keep_their_bytes() {
    let region = Region::create(&options(100), &quiet).expect("800 KiB");
    let (start, bytes) = region.parts().expect("it holds bytes");
    assert_eq!(bytes, 819_200);
    assert_eq!((region.pages(), region.moves_bytes()), (PageKind::Normal, true));
    for slot in 0..100 {
        let at = region.slot_ptr(SlotId(slot)).expect("in range").addr().get();
        assert_eq!(at - start.addr().get(), slot as usize * 8192);
        assert_eq!(at % 4096, 0);
        assert!(region.write_slot(SlotId(slot), &[slot as u8 + 1; 8192]));
    }
    for slot in 0..100 {
        let mut bytes = [0; 8192];
        assert!(region.read_slot(SlotId(slot), &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == slot as u8 + 1), "slot {slot}");
    }
}

#[test]
fn nothing_reaches_outside_a_slot() {
    let region = Region::create(&options(2), &quiet).expect("16 KiB");
    assert!(region.slot_ptr(SlotId(2)).is_none() && region.slot_ptr(SlotId(u32::MAX)).is_none());
    assert!(!region.write_slot(SlotId(1), &[0; 8193]) && !region.read_slot(SlotId(2), &mut [0]));
}

#[test]
fn the_file_is_sealed_and_as_long_as_the_region() {
    let region = Region::create(&options(3), &quiet).expect("24 KiB");
    let fd = region.fd().expect("it has a file");
    assert_eq!(fstat(fd).expect("a file").st_size, 24_576);
    let seals = fcntl_get_seals(fd).expect("seals");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(ftruncate(fd, 4096).is_err(), "another process could cut the memory from under us");
}

#[test]
fn progress_is_reported_up_to_the_end() {
    let (calls, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let report = |done: u64, total: u64| {
        assert!(done <= total && done > last.swap(done, Ordering::Relaxed));
        calls.fetch_add(1, Ordering::Relaxed);
    };
    // Nine whole pieces and a part of one.
    Region::create(&options(10_000), &report).expect("80 MiB");
    assert_eq!((calls.into_inner(), last.into_inner()), (10, 81_920_000));
}

#[test]
fn a_null_region_has_a_shape_and_no_bytes() {
    let region = Region::null(u32::MAX, 2 << 20, 2 << 20);
    assert_eq!((region.slots(), region.slot_stride(), region.block_bytes()), (u32::MAX, 2 << 20, 2 << 20));
    assert_eq!((region.pages(), region.moves_bytes()), (PageKind::None, false));
    assert!(region.slot_ptr(SlotId(0)).is_none() && region.parts().is_none() && region.fd().is_none());
    assert!(!region.write_slot(SlotId(0), &[1]) && !region.read_slot(SlotId(0), &mut [0]));
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    for wrong in [
        RegionOptions { slots: 0, ..options(1) },
        RegionOptions { slot_stride: 6000, ..options(1) },
        RegionOptions { block_bytes: 8193, ..options(1) },
        RegionOptions { block_bytes: 0, ..options(1) },
    ] {
        assert!(matches!(refusal(&wrong), PrimaryError::Shape { .. }), "{wrong:?}");
    }
}

#[test]
fn more_memory_than_the_machine_has_is_refused_before_it_is_taken() {
    let huge = RegionOptions { slots: u32::MAX, slot_stride: 1 << 30, block_bytes: 1 << 30, ..options(1) };
    let PrimaryError::Memory { need_bytes, available_bytes, .. } = refusal(&huge) else { panic!("another error") };
    assert!(need_bytes > available_bytes);
    assert!(refusal(&huge).to_string().contains("lower [primary] capacity"));
}

#[test]
fn huge_pages_are_used_or_the_error_says_how_to_get_them() {
    // More than any test machine keeps reserved: the fallback must work here, and the refusal must name the fix.
    let slots = 1 << 14;
    let required =
        RegionOptions { huge_pages: Choice::Require, slot_stride: 1 << 30, block_bytes: 1, ..options(slots) };
    let error = refusal(&required);
    assert!(matches!(error, PrimaryError::HugePages { need_pages: 8_388_608, .. }), "{error}");
    assert!(error.to_string().contains("sysctl vm.nr_hugepages="));

    let auto = RegionOptions { huge_pages: Choice::Auto, ..options(300) };
    let region = Region::create(&auto, &quiet).expect("2.3 MiB");
    let (_, bytes) = region.parts().expect("bytes");
    match region.pages() {
        PageKind::Huge => assert_eq!(bytes, 4 << 20),
        pages => assert_eq!((pages, bytes), (PageKind::Normal, 300 * 8192)),
    }
    assert!(region.write_slot(SlotId(299), &[1; 5000]));
}

#[test]
fn an_absent_numa_node_is_named() {
    let error = refusal(&RegionOptions { numa_node: Some(1000), ..options(1) });
    assert!(matches!(error, PrimaryError::NumaNode { node: 1000, .. }), "{error}");
    assert!(error.to_string().contains("numa_node = 1000"));
}

#[test]
fn the_first_numa_node_can_be_bound() {
    let bound = RegionOptions { numa_node: Some(0), ..options(10) };
    match Region::create(&bound, &quiet) {
        Ok(region) => assert!(region.write_slot(SlotId(9), &[1])),
        // Kernels without NUMA, and sandboxes that forbid `mbind`.
        Err(error) => assert!(matches!(error, PrimaryError::NumaNode { node: 0, .. }), "{error}"),
    }
}

#[test]
fn locked_memory_is_locked_or_the_error_says_how() {
    let locked = RegionOptions { lock_memory: true, ..options(10) };
    match Region::create(&locked, &quiet) {
        Ok(_region) => {
            let status = std::fs::read_to_string("/proc/self/status").expect("proc");
            let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line on locked memory");
            let kib: u32 = locked.trim().trim_end_matches(" kB").parse().expect("a number");
            assert!(kib >= 80, "{locked}");
        }
        Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
    }
}
