//! Block files of version 1, written by a program that shares no code with Terrace: the good one loads, every other is a miss.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_config::Choice;
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::nvme::format::{FOOTER_BYTES, Footer};
use terrace_tiers::nvme::{BlockName, Command, DirectoryOptions, PortEvent, ShardOptions, ShardPort, open_directory};
use terrace_tiers::{Fault, SystemClock, Time};

const PAYLOAD_BYTES: u32 = 4196;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn namespace() -> [u8; 32] {
    std::array::from_fn(|place| place as u8)
}

fn key() -> Key {
    let hash: [u8; 32] = [
        0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x01, 0x23,
        0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10,
    ];
    Key::new(&hash, 3).expect("32 bytes")
}

fn payload() -> Vec<u8> {
    (0..PAYLOAD_BYTES).map(|place| (place * 7 + place / 251) as u8).collect()
}

#[test]
fn the_name_is_where_the_format_page_says() {
    let name = BlockName { namespace: namespace(), key: key() };
    let wanted = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f/042/\
                  00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210_g3.blk";
    assert_eq!(name.path().as_str(), wanted);
}

#[test]
fn a_footer_is_written_byte_for_byte_as_the_fixture() {
    let footer =
        Footer { namespace: namespace(), key: key(), payload_bytes: PAYLOAD_BYTES, crc32: crc32fast::hash(&payload()) };
    let mut bytes = [0; FOOTER_BYTES];
    footer.encode(&mut bytes);
    assert_eq!(fixture("good.blk")[8192..], bytes);
}

#[test]
fn only_the_good_fixture_loads() {
    let cases = [
        ("good.blk", None),
        ("payload_bit.blk", Some(Fault::Corrupt)),
        ("footer_bit.blk", Some(Fault::Corrupt)),
        ("version_0.blk", Some(Fault::Corrupt)),
        ("version_2.blk", Some(Fault::Corrupt)),
        ("other_namespace.blk", Some(Fault::Corrupt)),
        ("other_key.blk", Some(Fault::Corrupt)),
        ("other_length.blk", Some(Fault::Corrupt)),
        ("codec_1.blk", Some(Fault::Corrupt)),
        ("no_footer.blk", Some(Fault::Corrupt)),
        ("truncated.blk", Some(Fault::Corrupt)),
    ];
    let root = tempfile::tempdir().expect("temporary directory");
    let region = Region::create(
        &RegionOptions {
            slots: 2,
            slot_stride: 8192,
            block_bytes: PAYLOAD_BYTES,
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        },
        &|_, _| {},
    )
    .expect("region");
    let mut port = open_directory(DirectoryOptions {
        tier: "fixtures".into(),
        root: root.path().into(),
        index: 0,
        direct_io: Choice::Auto,
        io_uring: Choice::Auto,
        shard: ShardOptions::new(namespace()),
        region: Arc::clone(&region),
        clock: Arc::new(SystemClock::new()),
    })
    .expect("directory");
    let path = root.path().join(BlockName { namespace: namespace(), key: key() }.path().as_str());
    fs::create_dir_all(path.parent().expect("parent")).expect("folders");
    for (ticket, (name, fault)) in (0u64..).zip(cases) {
        fs::write(&path, fixture(name)).expect("block file");
        let load = Command::Load { ticket, key: key(), slot: SlotId(0), crc32: None, deadline: Time(u64::MAX) };
        port.push(load).expect("room in the queue");
        port.flush();
        let result = wait_for(&mut port, ticket);
        assert_eq!(result.err(), fault, "{name}");
        if fault.is_none() {
            let mut loaded = payload();
            loaded.fill(0);
            assert!(region.read_slot(SlotId(0), &mut loaded));
            assert!(loaded == payload(), "{name} was loaded with wrong bytes");
        } else {
            // Moved away after the load has been reported: the slot is free before the file is.
            let start = Instant::now();
            while path.exists() {
                assert!(start.elapsed() < Duration::from_secs(30), "{name}: the copy is not moved away");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    port.shutdown(Duration::from_secs(10));
}

fn wait_for(port: &mut impl ShardPort, wanted: u64) -> Result<u32, Fault> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(30) {
        port.poll(&mut events);
        for event in events.drain(..) {
            if let PortEvent::Done { ticket, result } = event
                && ticket == wanted
            {
                return result.map(|placed| placed.crc32);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the load of ticket {wanted} never ended");
}
