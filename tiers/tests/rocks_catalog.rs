//! The catalog on RocksDB: what it keeps over clean stops, crashes and damage.
#![cfg(feature = "rocksdb")]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{NAMESPACE, key};
use terrace_tiers::catalog::{
    CatalogEntry, CatalogState, CatalogStore, CatalogValue, RocksCatalog, RocksCatalogOptions,
};
use terrace_tiers::nvme::BlockName;

fn open_for(directory: &Path, paths: &[&str]) -> RocksCatalog {
    RocksCatalog::open(RocksCatalogOptions {
        tier: "nvme".into(),
        directory: directory.join("catalog"),
        paths: paths.iter().map(Into::into).collect(),
        require: true,
    })
    .unwrap()
}

fn open(directory: &Path) -> RocksCatalog {
    open_for(directory, &["/a", "/b"])
}

fn read(catalog: &mut RocksCatalog) -> (CatalogState, Vec<CatalogEntry>) {
    let (mut entries, start) = (Vec::new(), Instant::now());
    loop {
        let before = entries.len();
        let state = catalog.poll(700, &mut entries);
        assert!(entries.len() - before <= 700);
        if state != CatalogState::Reading {
            return (state, entries);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the catalog is never read");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn name(n: u64) -> BlockName {
    BlockName { namespace: NAMESPACE, key: key(n) }
}

fn value(n: u64) -> CatalogValue {
    CatalogValue { lane: 1, allocated_bytes: n * 512, crc32: Some(n as u32), generation: 1, last_access: n * 3 }
}

/// A catalog that was filled with `0..count` after a scan.
fn filled(directory: &Path, count: u64) -> RocksCatalog {
    let mut catalog = open(directory);
    assert_eq!(read(&mut catalog).0, CatalogState::Lost);
    catalog.rebuilt();
    for n in 0..count {
        catalog.put(&name(n), &value(n));
        if n % 100 == 0 {
            catalog.flush();
        }
    }
    catalog
}

fn close(mut catalog: RocksCatalog, clean: bool) {
    catalog.shutdown(clean, Duration::from_secs(30));
    assert_eq!(catalog.lost(), 0);
}

#[test]
fn a_clean_stop_brings_every_entry_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut catalog = filled(directory.path(), 5000);
    catalog.put(&name(3), &value(9));
    catalog.delete(&name(4));
    close(catalog, true);
    let mut catalog = open(directory.path());
    let (state, mut entries) = read(&mut catalog);
    assert_eq!(state, CatalogState::Read { clean: true });
    assert_eq!(catalog.generation(), 2);
    entries.sort_by_key(|entry| entry.name);
    let wanted =
        (0..5000).filter(|n| *n != 4).map(|n| CatalogEntry { name: name(n), value: value(if n == 3 { 9 } else { n }) });
    assert_eq!(entries, wanted.collect::<Vec<_>>());
}

#[test]
fn changes_during_the_read_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    close(filled(directory.path(), 50_000), true);
    let mut catalog = open(directory.path());
    let mut entries = Vec::new();
    while entries.is_empty() {
        catalog.poll(10, &mut entries);
    }
    for n in 50_000..50_010 {
        catalog.put(&name(n), &value(n));
    }
    catalog.delete(&name(0));
    catalog.flush();
    read(&mut catalog);
    close(catalog, true);
    let mut names: Vec<_> = read(&mut open(directory.path())).1.into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, (1..50_010).map(name).collect::<Vec<_>>());
}

#[test]
fn a_stop_that_is_not_clean_is_seen_and_its_checksums_are_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    for stop in ["dropped", "closed with something in flight"] {
        let mut catalog = filled(directory.path(), 10);
        catalog.flush();
        match stop {
            "dropped" => drop(catalog),
            _ => close(catalog, false),
        }
        let mut catalog = open(directory.path());
        let (state, entries) = read(&mut catalog);
        assert_eq!(state, CatalogState::Read { clean: false }, "{stop}");
        assert_eq!(entries.len(), 10, "{stop}");
        assert!(entries.iter().all(|entry| entry.value.crc32.is_none()), "{stop}");
        drop(catalog);
        fs::remove_dir_all(directory.path().join("catalog")).unwrap();
    }
}

#[test]
fn a_rebuild_that_did_not_end_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let mut catalog = open(directory.path());
    read(&mut catalog);
    catalog.put(&name(1), &value(1));
    close(catalog, true);
    let (state, entries) = read(&mut open(directory.path()));
    assert_eq!((state, entries.len()), (CatalogState::Lost, 0));
}

#[test]
fn other_directories_or_distrust_make_it_lost() {
    let directory = tempfile::tempdir().unwrap();
    close(filled(directory.path(), 10), true);
    let mut catalog = open_for(directory.path(), &["/b", "/a"]);
    assert_eq!(read(&mut catalog).0, CatalogState::Lost);
    catalog.rebuilt();
    catalog.put(&name(1), &value(1));
    close(catalog, true);
    let mut catalog = open_for(directory.path(), &["/b", "/a"]);
    assert_eq!(read(&mut catalog).0, CatalogState::Read { clean: true });
    catalog.distrust();
    close(catalog, true);
    assert_eq!(read(&mut open_for(directory.path(), &["/b", "/a"])).0, CatalogState::Lost);
}

/// Damage of any file must not stop the start; whatever is read is an entry that was written.
#[test]
fn damage_never_stops_the_start() {
    let whole = tempfile::tempdir().unwrap();
    close(filled(whole.path(), 3000), true);
    let files: Vec<_> =
        fs::read_dir(whole.path().join("catalog")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for file in files {
        for damage in ["emptied", "overwritten", "removed", "a directory"] {
            let copy = tempfile::tempdir().unwrap();
            let to = copy.path().join("catalog");
            fs::create_dir(&to).unwrap();
            for entry in fs::read_dir(whole.path().join("catalog")).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
            let victim = to.join(&file);
            match damage {
                "emptied" => fs::write(&victim, b"").unwrap(),
                "overwritten" => fs::write(&victim, vec![0x5a; 5000]).unwrap(),
                "removed" => fs::remove_file(&victim).unwrap(),
                _ => {
                    fs::remove_file(&victim).unwrap();
                    fs::create_dir(&victim).unwrap();
                }
            }
            let mut catalog = open(copy.path());
            let (state, entries) = read(&mut catalog);
            for entry in entries {
                let n = (entry.value.last_access / 3) as u32;
                assert_eq!(entry.name, name(n.into()), "{file:?} {damage}");
            }
            if state == CatalogState::Lost {
                catalog.rebuilt();
            }
            catalog.put(&name(1), &value(1));
            close_after_damage(catalog);
        }
    }
}

fn close_after_damage(mut catalog: RocksCatalog) {
    catalog.shutdown(true, Duration::from_secs(30));
}

#[test]
fn rubbish_in_its_place_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("catalog"), b"rubbish").unwrap();
    let catalog = filled(directory.path(), 10);
    close(catalog, true);
    assert_eq!(read(&mut open(directory.path())).1.len(), 10);
}

#[test]
fn too_many_changes_are_dropped_counted_and_make_it_stale() {
    let directory = tempfile::tempdir().unwrap();
    let mut catalog = open(directory.path());
    read(&mut catalog);
    catalog.rebuilt();
    let room = catalog.room() as u64;
    for n in 0..room + 10 {
        catalog.put(&name(n), &value(n));
    }
    assert_eq!((catalog.lost(), catalog.room()), (10, 0));
    catalog.shutdown(true, Duration::from_secs(60));
    assert_eq!(read(&mut open(directory.path())).0, CatalogState::Lost);
}

#[test]
fn a_second_handle_is_refused_and_the_first_keeps_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let first = filled(directory.path(), 10);
    let options = RocksCatalogOptions {
        tier: "nvme".into(),
        directory: directory.path().join("catalog"),
        paths: vec!["/a".into(), "/b".into()],
        require: true,
    };
    assert!(RocksCatalog::open(options.clone()).is_err());
    let mut second = RocksCatalog::open(RocksCatalogOptions { require: false, ..options }).unwrap();
    assert_eq!(read(&mut second).0, CatalogState::Lost);
    drop(second);
    close(first, true);
    assert_eq!(read(&mut open(directory.path())).1.len(), 10);
}
