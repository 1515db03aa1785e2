//! Blocks on a real disk, through a thread and each real device: what is stored comes back, and nothing else does.

mod shard_support;

use std::fs;

use shard_support::{
    Bench, DEVICES, NAMESPACE, NEVER, count_files, directory, file_of, key, name, open, options, region,
};
use terrace_config::Choice;
use terrace_primary::{Key, SlotId};
use terrace_tiers::nvme::format::file_bytes;
use terrace_tiers::nvme::{BlockName, Command, ShardPort as _, open_directory};
use terrace_tiers::{Fault, TierError};

const BLOCK_BYTES: u32 = 64 << 10;

#[test]
fn blocks_come_back() {
    for io_uring in DEVICES {
        for block_bytes in [BLOCK_BYTES, 5000] {
            let (dir, region) = (directory(), region(64, block_bytes));
            let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
            for number in 0..32 {
                bench.fill(number, number);
            }
            let stores = (0..32).map(|number| {
                let (ticket, slot) = (bench.ticket(), SlotId(number));
                Command::Store { ticket, key: key(number), slot, crc32: None, recycle: None, deadline: NEVER }
            });
            let stores = stores.collect();
            let stored = bench.run(stores);
            let loads = (0..32).map(|number| {
                let (ticket, slot) = (bench.ticket(), SlotId(32 + number));
                Command::Load { ticket, key: key(number), slot, crc32: None, deadline: NEVER }
            });
            let loads = loads.collect();
            let loaded = bench.run(loads);
            for number in 0..32 {
                let placed = stored[number as usize].unwrap();
                assert!(placed.allocated_bytes >= file_bytes(block_bytes), "{placed:?}");
                assert_eq!(loaded[number as usize].unwrap().crc32, placed.crc32);
                assert!(bench.holds(32 + number, number), "{io_uring:?} {block_bytes} {number}");
                assert_eq!(fs::metadata(file_of(dir.path(), number)).unwrap().len(), file_bytes(block_bytes));
            }
            assert_eq!(count_files(&dir.path().join("tmp")), 0);
        }
    }
}

#[test]
fn a_victims_file_is_taken_over() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        bench.store(1, 0, None).unwrap();
        let inode = |number| std::os::unix::fs::MetadataExt::ino(&fs::metadata(file_of(dir.path(), number)).unwrap());
        let before = inode(1);
        bench.store(2, 0, Some(name(1))).unwrap();
        assert_eq!(inode(2), before, "{io_uring:?}");
        assert!(!file_of(dir.path(), 1).exists());
        assert_eq!(bench.load(1, 1), Err(Fault::Absent));
        bench.load(2, 1).unwrap();
        assert!(bench.holds(1, 2));
        // A victim that is gone already: a fresh file.
        bench.store(3, 0, Some(name(77))).unwrap();
        bench.load(3, 1).unwrap();
        assert!(bench.holds(1, 3));
        assert_eq!(bench.port.counters().recycled, 1);
        assert_eq!(count_files(&dir.path().join("tmp")), 0);
    }
}

#[test]
fn a_victim_of_another_namespace_is_removed_not_taken_over() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let other = BlockName { namespace: [9; 32], key: key(1) };
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        let path = dir.path().join(other.path().as_str());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        bench.store(2, 0, Some(other)).unwrap();
        assert!(!path.exists());
        assert_eq!(fs::metadata(file_of(dir.path(), 2)).unwrap().len(), file_bytes(BLOCK_BYTES));
        bench.load(2, 1).unwrap();
        assert_eq!(bench.port.counters().recycled, 0);
    }
}

#[test]
fn storing_a_name_again_replaces_it_and_removing_ends_it() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        bench.store(1, 0, None).unwrap();
        bench.store(1, 0, None).unwrap();
        bench.load(1, 1).unwrap();
        bench.remove(name(1)).unwrap();
        bench.remove(name(1)).unwrap();
        assert_eq!(bench.load(1, 1), Err(Fault::Absent));
    }
}

/// One batch in which every command depends on the one before it.
#[test]
fn commands_on_one_file_keep_their_order() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        bench.fill(0, 1);
        for _ in 0..20 {
            let store = |ticket, number, recycle| Command::Store {
                ticket,
                key: key(number),
                slot: SlotId(0),
                crc32: None,
                recycle,
                deadline: NEVER,
            };
            let mut ticket = || bench.ticket();
            let commands = vec![
                store(ticket(), 1, None),
                store(ticket(), 2, Some(name(1))),
                store(ticket(), 1, Some(name(2))),
                Command::Remove { ticket: ticket(), name: name(1) },
                store(ticket(), 1, None),
            ];
            assert!(bench.run(commands).iter().all(Result::is_ok));
            assert!(bench.load(1, 1).is_ok() && bench.load(2, 1) == Err(Fault::Absent));
        }
        assert_eq!(bench.port.counters().recycled, 40);
    }
}

#[test]
fn a_scan_finds_every_block_and_empties_tmp() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, 8192));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        for number in 0..300 {
            bench.store(number, 0, None).unwrap();
        }
        fs::write(dir.path().join("tmp/12345"), "left by an earlier life").unwrap();
        fs::write(file_of(dir.path(), 7).parent().unwrap().join("notes.txt"), "not ours").unwrap();
        fs::write(dir.path().join("README"), "not ours").unwrap();
        let (mut found, complete) = bench.scan();
        assert!(complete);
        found.sort_by_key(|block| block.name);
        let mut expected: Vec<_> = (0..300).map(name).collect();
        expected.sort();
        assert_eq!(found.iter().map(|block| block.name).collect::<Vec<_>>(), expected);
        assert!(found.iter().all(|block| block.allocated_bytes >= file_bytes(8192) && block.modified_ns > 1 << 60));
        assert_eq!(count_files(&dir.path().join("tmp")), 0);
        assert_eq!((bench.port.counters().leftovers, bench.port.counters().foreign_files), (1, 1));
    }
}

#[test]
fn blocks_outlive_the_port() {
    for (first, second) in [(Choice::Require, Choice::Off), (Choice::Off, Choice::Require)] {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), first, &region).unwrap(), &region);
        let stored = bench.store(1, 0, None).unwrap();
        drop(bench);
        let mut bench = Bench::new(open(dir.path(), second, &region).unwrap(), &region);
        assert_eq!(bench.load(1, 1).unwrap().crc32, stored.crc32);
        assert!(bench.holds(1, 1));
    }
}

#[test]
fn longest_keys_work() {
    let (dir, region) = (directory(), region(4, BLOCK_BYTES));
    let mut bench = Bench::new(open(dir.path(), Choice::Auto, &region).unwrap(), &region);
    let key = Key::new(&[0xfe; 64], u32::MAX).unwrap();
    let ticket = bench.ticket();
    let store = Command::Store { ticket, key, slot: SlotId(0), crc32: None, recycle: None, deadline: NEVER };
    bench.run(vec![store])[0].unwrap();
    let ticket = bench.ticket();
    bench.run(vec![Command::Load { ticket, key, slot: SlotId(1), crc32: None, deadline: NEVER }])[0].unwrap();
}

#[test]
fn buffered_files_work_too() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(4, BLOCK_BYTES));
        let mut options = options(dir.path(), io_uring, &region);
        options.direct_io = Choice::Off;
        let mut bench = Bench::new(open_directory(options).unwrap(), &region);
        bench.store(1, 0, None).unwrap();
        bench.load(1, 1).unwrap();
        assert!(bench.holds(1, 1));
    }
}

#[test]
fn what_is_expired_or_given_up_is_not_stored() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(64, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        let ticket = bench.ticket();
        let deadline = terrace_tiers::Time(0);
        let store = Command::Store { ticket, key: key(1), slot: SlotId(0), crc32: None, recycle: None, deadline };
        assert_eq!(bench.run(vec![store]), [Err(Fault::Expired)]);
        // Given up at any moment of its life: before the flush, or a little after.
        for round in 0..200_u32 {
            let number = 100 + round;
            bench.fill(0, number);
            let ticket = bench.ticket();
            let store = Command::Store {
                ticket,
                key: key(number),
                slot: SlotId(0),
                crc32: None,
                recycle: None,
                deadline: NEVER,
            };
            bench.port.push(store).unwrap();
            if round % 4 != 0 {
                bench.port.flush();
                std::thread::sleep(std::time::Duration::from_micros(u64::from(round)));
            }
            bench.port.abandon(ticket);
            // From here on the slot belongs to its owner again.
            bench.fill(0, 9999);
            bench.port.flush();
            let mut stored = false;
            bench.poll_until(|event| match event {
                terrace_tiers::nvme::PortEvent::Done { ticket: done, result } => {
                    assert_eq!(*done, ticket);
                    stored = result.is_ok();
                    true
                }
                _ => false,
            });
            let loaded = bench.load(number, 1);
            if stored {
                assert!(loaded.is_ok() && bench.holds(1, number));
            } else {
                assert_eq!(loaded, Err(Fault::Absent), "round {round}");
            }
        }
        assert!(bench.port.counters().expired > 0);
        assert_eq!(count_files(&dir.path().join("tmp")), 0);
    }
}

#[test]
fn a_directory_has_one_process() {
    let (dir, region) = (directory(), region(4, BLOCK_BYTES));
    let first = open(dir.path(), Choice::Auto, &region).unwrap();
    let error = open(dir.path(), Choice::Auto, &region).err().unwrap().to_string();
    assert!(error.contains("another process uses it"), "{error}");
    drop(first);
    open(dir.path(), Choice::Auto, &region).unwrap();
}

#[test]
fn a_directory_of_another_format_is_refused() {
    let (dir, region) = (directory(), region(4, BLOCK_BYTES));
    drop(open(dir.path(), Choice::Auto, &region).unwrap());
    let format = dir.path().join("FORMAT");
    assert_eq!(fs::read_to_string(&format).unwrap(), "terrace block directory 1\n");
    for (text, expected) in [("terrace block directory 2\n", "in format 2"), ("something else", "is not Terrace's")] {
        fs::write(&format, text).unwrap();
        let error = open(dir.path(), Choice::Auto, &region).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_root_that_cannot_be_made_is_an_error() {
    let (dir, region) = (directory(), region(4, BLOCK_BYTES));
    fs::write(dir.path().join("file"), "").unwrap();
    let error = open(&dir.path().join("file/below"), Choice::Auto, &region).err().unwrap();
    assert!(matches!(error, TierError::Directory { .. }), "{error}");
}

#[test]
fn a_closed_port_takes_nothing_and_owes_nothing() {
    for io_uring in DEVICES {
        let (dir, region) = (directory(), region(64, BLOCK_BYTES));
        let mut bench = Bench::new(open(dir.path(), io_uring, &region).unwrap(), &region);
        for number in 0..64 {
            bench.fill(number, number);
            let (ticket, slot) = (bench.ticket(), SlotId(number));
            let store = Command::Store { ticket, key: key(number), slot, crc32: None, recycle: None, deadline: NEVER };
            bench.port.push(store).unwrap();
        }
        bench.port.flush();
        bench.port.shutdown(std::time::Duration::from_secs(20));
        let mut events = Vec::new();
        bench.port.poll(&mut events);
        assert_eq!(events.len(), 64);
        let ticket = bench.ticket();
        assert!(bench.port.push(Command::Remove { ticket, name: name(1) }).is_err());
        assert_eq!(count_files(&dir.path().join("tmp")), 0);
        assert_eq!(name(1).namespace, NAMESPACE);
    }
}
