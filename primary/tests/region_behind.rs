//! Regions that are backed behind a running service, and regions of another process.

use std::fs::File;
use std::io::{ErrorKind, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use terrace_config::Choice;
use terrace_primary::{Key, PageKind, Primary, PrimaryError, Region, RegionOptions, SlotId};

const STRIDE: u32 = 1 << 20;

fn options(slots: u32) -> RegionOptions {
    RegionOptions {
        slots,
        slot_stride: STRIDE,
        block_bytes: STRIDE - 1,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 2,
    }
}

/// Bytes of the region that are there, as the kernel counts them.
fn resident_bytes(region: &Region) -> u64 {
    let (start, _) = region.parts().expect("it holds bytes");
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("proc");
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&format!("{:x}-", start.addr())));
    let kib = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the region is mapped");
    kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn threads() -> usize {
    // The kernel keeps 15 bytes of a name.
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc");
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "terrace-prefaul").count()
}

/// One after the other: they count the threads of the process.
#[test]
fn backing_behind() {
    it_grows_to_the_end_and_slots_follow_it();
    a_drop_on_the_way_ends_the_threads();
    locked_memory_is_locked_piece_by_piece();
}

fn it_grows_to_the_end_and_slots_follow_it() {
    let region = Region::start_behind(&options(200)).expect("200 MiB");
    let mut primary = Primary::new(region.slots(), 32, terrace_config::Policy::Lru);
    primary.set_usable(region.ready_slots());
    let (mut before, mut stored) = (0, 0_u32);
    wait_until(|| {
        let ready = region.ready_slots();
        assert!(before <= ready && ready <= 200 && u64::from(ready) * u64::from(STRIDE) <= region.ready_bytes());
        assert!(region.ready_bytes() <= resident_bytes(&region), "bytes that are ready are not there");
        before = ready;
        primary.set_usable(ready);
        while let Some(slot) = primary.insert_writing(&Key::new(&stored.to_be_bytes(), 0).expect("a key")) {
            assert!(slot.0 < ready && region.write_slot(slot, &[stored as u8 + 1; 100]));
            stored += 1;
        }
        ready == region.slots()
    });
    assert_eq!((stored, region.backing_failure()), (200, None));
    assert_eq!(region.ready_bytes(), 200 << 20);
    for slot in 0..200 {
        // Backing what comes later leaves what is there alone.
        let mut bytes = [0; 101];
        assert!(region.read_slot(SlotId(slot), &mut bytes));
        assert!(bytes[..100].iter().all(|byte| *byte == slot as u8 + 1) && bytes[100] == 0, "slot {slot}");
    }
}

fn a_drop_on_the_way_ends_the_threads() {
    for started in [false, true] {
        let region = Region::start_behind(&options(1500)).expect("1.5 GiB");
        if started {
            wait_until(|| region.ready_slots() > 0 && threads() > 0);
        }
        let file = another_handle(&region);
        drop(region);
        // The kernel lists a thread a moment longer than it is waited for.
        wait_until(|| threads() == 0);
        let backed_bytes = rustix::fs::fstat(&file).expect("the region's file").st_blocks * 512;
        assert!(backed_bytes < 1500 << 20, "it went on to the end");
    }
}

fn locked_memory_is_locked_piece_by_piece() {
    if std::env::var_os("TERRACE_SANITIZER").is_some() {
        eprintln!("*** NOT RUN: under a sanitizer mlock does nothing ***");
        return;
    }
    let locked = RegionOptions { lock_memory: true, ..options(20) };
    let region = match Region::start_behind(&locked) {
        Ok(region) => region,
        Err(error) => {
            eprintln!("*** NOT RUN: memory cannot be locked here: {error} ***");
            return;
        }
    };
    wait_until(|| region.ready_slots() == 20 || region.backing_failure().is_some());
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line on locked memory");
    let kib: u64 = kib.trim().trim_end_matches(" kB").parse().expect("a number");
    match region.backing_failure() {
        None => assert!(kib >= 20 << 10, "{kib} KiB"),
        Some(failure) => assert!(failure.contains("ulimit -l"), "{failure}"),
    }
}

fn another_handle(region: &Region) -> OwnedFd {
    region.fd().expect("it has a file").try_clone_to_owned().expect("a descriptor")
}

#[test]
fn a_region_can_be_mapped_twice() {
    let region = Region::create(&RegionOptions { slot_stride: 8192, block_bytes: 5000, ..options(3) }, &|_, _| {});
    let region = region.expect("24 KiB");
    let other = Region::from_fd(another_handle(&region), 3, 8192, 5000).expect("the same file");
    assert_eq!((other.slots(), other.ready_slots(), other.pages()), (3, 3, PageKind::Normal));
    assert_eq!((other.ready_bytes(), other.backing_failure()), (24_576, None));
    assert!(region.write_slot(SlotId(2), &[7; 5000]));
    drop(region);
    let mut bytes = [0; 5000];
    assert!(other.read_slot(SlotId(2), &mut bytes) && bytes == [7; 5000]);
    // A part of it is a region as well.
    assert!(Region::from_fd(another_handle(&other), 1, 8192, 5000).is_ok());
}

#[test]
fn huge_pages_can_be_mapped_twice() {
    let huge = RegionOptions { huge_pages: Choice::Require, ..options(3) };
    match Region::create(&huge, &|_, _| {}) {
        Ok(region) => {
            let other = Region::from_fd(another_handle(&region), 3, STRIDE, 1).expect("the same file");
            assert_eq!((other.pages(), other.parts().expect("bytes").1), (PageKind::Huge, 4 << 20));
        }
        Err(error) => eprintln!("*** NOT RUN: no huge pages here: {error} ***"),
    }
}

#[test]
fn files_that_could_be_cut_or_are_short_are_refused() {
    let refused = |fd, slots| Region::from_fd(fd, slots, 8192, 5000).expect_err("must be refused");
    let region = Region::create(&RegionOptions { slot_stride: 8192, block_bytes: 5000, ..options(3) }, &|_, _| {});
    let region = region.expect("24 KiB");
    let short = refused(another_handle(&region), 4);
    assert!(matches!(short, PrimaryError::ShortFile { need_bytes: 32_768, file_bytes: 24_576 }), "{short}");
    assert!(matches!(refused(another_handle(&region), 0), PrimaryError::Shape { .. }));

    let memfd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&memfd, 1 << 20).expect("longer");
    let again = memfd.try_clone().expect("a descriptor");
    assert!(matches!(refused(again, 3), PrimaryError::Unsealed));
    fcntl_add_seals(&memfd, SealFlags::GROW).expect("a seal");
    let again = memfd.try_clone().expect("a descriptor");
    assert!(refused(again, 3).to_string().contains("F_SEAL_SHRINK"), "sealed against growing alone");
    fcntl_add_seals(&memfd, SealFlags::SHRINK).expect("a seal");
    assert!(Region::from_fd(memfd, 3, 8192, 5000).is_ok());

    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&[0; 1 << 16]).expect("room");
    assert!(matches!(refused(file.into(), 3), PrimaryError::Unsealed));
    let (read, _write) = std::io::pipe().expect("a pipe");
    assert!(matches!(refused(read.into(), 3), PrimaryError::Unsealed));
    // Sealed and long, and yet not to be written.
    let sealed = memfd_create("read only", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&sealed, 1 << 20).expect("longer");
    fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::WRITE).expect("seals");
    assert!(matches!(refused(sealed, 3), PrimaryError::System { .. }));
}

#[test]
fn slots_move_straight_from_and_to_files() {
    let region = Region::create(&options(3), &|_, _| {}).expect("3 MiB");
    let mut file = tempfile::tempfile().expect("a file");
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    file.write_all(&content).expect("room");

    region.fill_slot_from(SlotId(1), file.as_fd(), 1000, 200_000).expect("it is all there");
    let mut bytes = vec![0; 200_001];
    assert!(region.read_slot(SlotId(1), &mut bytes));
    assert!(bytes[..200_000] == content[1000..201_000] && bytes[200_000] == 0);
    for slot in [0, 2] {
        assert!(region.read_slot(SlotId(slot), &mut bytes) && bytes.iter().all(|byte| *byte == 0), "slot {slot}");
    }

    region.drain_slot_to(SlotId(1), file.as_fd(), 100_000, 200_000).expect("it has the length");
    file.rewind().expect("a file");
    let mut back = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut back).expect("readable");
    assert!(back[..100_000] == content[..100_000] && back[100_000..] == content[1000..201_000]);
}

#[test]
fn short_files_and_wrong_slots_are_errors() {
    let region = Region::create(&options(2), &|_, _| {}).expect("2 MiB");
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&[1; 10_000]).expect("room");
    let fd = file.as_fd();
    let stride = STRIDE as usize;
    let kind = |result: std::io::Result<()>| result.expect_err("must fail").kind();
    for (offset, len) in [(0, 10_001), (9_999, 2), (10_000, 1), (1 << 40, 1)] {
        assert_eq!(kind(region.fill_slot_from(SlotId(0), fd, offset, len)), ErrorKind::UnexpectedEof);
        assert_eq!(kind(region.drain_slot_to(SlotId(0), fd, offset, len)), ErrorKind::UnexpectedEof);
    }
    assert_eq!(file.metadata().expect("a file").len(), 10_000, "a short file was made longer");
    for (slot, len) in [(2, 1), (u32::MAX, 1), (1, stride + 1), (0, usize::MAX)] {
        assert_eq!(kind(region.fill_slot_from(SlotId(slot), fd, 0, len)), ErrorKind::InvalidInput);
        assert_eq!(kind(region.drain_slot_to(SlotId(slot), fd, 0, len)), ErrorKind::InvalidInput);
    }
    assert_eq!(kind(region.fill_slot_from(SlotId(0), fd, u64::MAX, 2)), ErrorKind::InvalidInput);
    assert_eq!(kind(Region::null(2, STRIDE, 1).fill_slot_from(SlotId(0), fd, 0, 1)), ErrorKind::InvalidInput);
    let read_only = File::open("/proc/self/exe").expect("this test");
    assert!(region.drain_slot_to(SlotId(0), read_only.as_fd(), 0, 1).is_err());
    region.fill_slot_from(SlotId(1), fd, 10_000, 0).expect("nothing is always there");
}
