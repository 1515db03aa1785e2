//! `terrace tenant`: what tiers of two tenants left in directories and a bucket is told apart, and one of them is removed from all of it.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use terrace_config::Config;
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::{
    JobId, SecondaryTier, StoreBlock, StoreJob, SystemClock, TierEvent, TierNamespace, Time, open_tier,
};

const BLOCKS: u32 = 8;

/// Two directories and a directory that stands for a bucket.
fn config(place: &Path, tenant: &str) -> Config {
    config_with(place, tenant, "")
}

fn config_with(place: &Path, tenant: &str, more: &str) -> Config {
    let text = format!(
        "[primary]\nblocks = {BLOCKS}\n[geometry]\nblock_bytes = 4096\n[namespace]\nmodel = \"m\"\ntenant = {tenant:?}\n\
         [[tier]]\ntype = \"nvme\"\npaths = [{:?}, {:?}]\nblocks = 64\n\
         [[tier]]\ntype = \"object\"\nurl = \"file://{}\"\nblocks = 64\nlinger = \"1ms\"\npublish_interval = \"10ms\"\n\
         collector = \"never\"\n{more}",
        place.join("a"),
        place.join("b"),
        place.join("bucket").display(),
    );
    std::fs::write(place.join("terrace.toml"), &text).expect("written");
    Config::parse(&text, "test").expect("sound")
}

/// The tiers of a configuration, with its label where there is to be one.
fn open(config: &Config, labelled: bool) -> Vec<Box<dyn SecondaryTier>> {
    let geometry = &config.geometry;
    let options = RegionOptions {
        slots: BLOCKS,
        slot_stride: geometry.slot_stride(),
        block_bytes: geometry.block_bytes,
        huge_pages: config.primary.huge_pages,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    let region = Region::create(&options, &|_, _| {}).expect("a small region");
    let namespace = TierNamespace::of(config).expect("keys");
    let namespace = if labelled { namespace } else { namespace.digest.into() };
    let open =
        |tier| open_tier(tier, namespace.clone(), geometry, Arc::clone(&region), Arc::new(SystemClock::new())).unwrap();
    config.tiers.iter().map(open).collect()
}

/// Stores `BLOCKS` blocks in every tier and closes it.
fn fill(config: &Config, labelled: bool) {
    for mut tier in open(config, labelled) {
        let block = |slot: u32| {
            let key = Key::new(&[slot as u8 + 1; 32], 0).expect("a key");
            StoreBlock { key, slot: SlotId(slot), crc32: None }
        };
        let job = || StoreJob { id: JobId(1), blocks: (0..BLOCKS).map(block).collect(), deadline: Time(u64::MAX) };
        let (mut events, start) = (Vec::new(), Instant::now());
        let mut taken = false;
        while events.iter().filter(|event| matches!(event, TierEvent::StoreDone { outcome: Ok(_), .. })).count() < 8 {
            taken = taken || tier.submit_store(job()).is_ok();
            tier.poll(&mut events);
            assert!(start.elapsed() < Duration::from_secs(60), "not stored: {events:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        tier.shutdown(Duration::from_secs(30));
    }
}

fn terrace(place: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.arg("tenant").args(arguments).arg("--json").arg("--config").arg(place.join("terrace.toml"));
    command.output().expect("terrace starts")
}

fn report(output: &Output) -> Value {
    let log = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|fault| panic!("no JSON ({fault}): {log}"))
}

/// Namespaces of `ls`: tier, tenant, files.
fn listed(place: &Path) -> Vec<(String, Option<String>, u64)> {
    let output = terrace(place, &["ls"]);
    assert!(output.status.success(), "{output:?}");
    let report = report(&output);
    let line = |line: &Value| {
        let word = |name: &str| line[name].as_str().map(str::to_owned);
        (word("tier").expect("a tier"), word("tenant"), line["files"].as_u64().expect("a number"))
    };
    report["namespaces"].as_array().expect("lines").iter().map(line).collect()
}

/// Whether any file below `root` names or holds one of these.
fn is_mentioned(root: &Path, needles: &[&[u8]]) -> bool {
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        }
        let bytes = if path.is_file() { std::fs::read(&path).expect("a file") } else { Vec::new() };
        let name = path.as_os_str().as_encoded_bytes();
        let holds = |hay: &[u8], needle: &[u8]| hay.windows(needle.len()).any(|window| window == needle);
        if needles.iter().any(|needle| holds(name, needle) || holds(&bytes, needle)) {
            return true;
        }
    }
    false
}

#[test]
fn a_tenant_goes_from_every_tier_and_the_others_stay() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    let (keeps, goes) = (config(place, "keeps"), config(place, "goes"));
    fill(&keeps, true);
    fill(&goes, true);
    // What is left of a crash and of a check that failed may be anybody's.
    std::fs::write(place.join("a/tmp/7"), "half a block").expect("written");
    std::fs::write(place.join("b/quarantine/0.blk"), "a bad block").expect("written");

    let before = listed(place);
    assert_eq!(before.len(), 6, "two tenants in three places: {before:?}");
    let of = |lines: &[(String, Option<String>, u64)], tenant: &str| -> u64 {
        lines.iter().filter(|line| line.1.as_deref() == Some(tenant)).map(|line| line.2).sum()
    };
    // 8 blocks in two directories, each with a label; a label, a log object and segments in the bucket.
    assert!(of(&before, "goes") >= 8 + 2 + 3, "{before:?}");

    let output = terrace(place, &["erase", "goes"]);
    assert!(output.status.success() && report(&output)["applied"] == false, "{output:?}");
    assert_eq!(listed(place), before, "nothing goes without --yes");

    let output = terrace(place, &["erase", "goes", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    let erased = report(&output);
    assert_eq!((&erased["applied"], &erased["left"]), (&Value::Bool(true), &Value::Bool(false)));
    let lines = erased["namespaces"].as_array().expect("lines");
    assert!(lines.len() == 3 && lines.iter().all(|line| line["left_files"] == 0), "{erased:#}");

    let after = listed(place);
    assert_eq!((after.len(), of(&after, "goes")), (3, 0));
    assert_eq!(of(&after, "keeps"), of(&before, "keeps"));
    let digest = TierNamespace::of(&goes).expect("keys").digest;
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for root in ["a", "b", "bucket"] {
        assert!(!is_mentioned(
            &place.join(root),
            &[&digest, digits.as_bytes(), b"goes", b"half a block", b"bad block"]
        ));
    }
    assert!(is_mentioned(&place.join("a"), &[b"keeps"]), "the search finds what is there");
    // What stays can still be read: the tiers find their blocks again.
    fill(&keeps, true);
    let again = terrace(place, &["erase", "goes", "--yes"]);
    assert!(again.status.success() && report(&again)["namespaces"] == Value::Array(Vec::new()), "{again:?}");
}

#[test]
fn what_is_in_use_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    let config = config(place, "goes");
    fill(&config, true);
    let before = listed(place);
    let tiers = open(&config, true);
    let output = terrace(place, &["erase", "goes", "--yes"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("stop the daemon") && log.contains("LOCK is held"), "{log}");
    drop(tiers);
    assert_eq!(listed(place), before, "not a file went");
}

#[test]
fn a_held_lease_is_asked_about() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    let config = config(place, "goes");
    fill(&config, true);
    let digits: String =
        TierNamespace::of(&config).expect("keys").digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let leases = place.join("bucket").join(digits).join("lease");
    std::fs::create_dir_all(&leases).expect("made");
    std::fs::write(leases.join("0000000000000001"), "a term").expect("written");
    let output = terrace(place, &["erase", "goes", "--yes"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("--in-use"), "{log}");
    assert!(terrace(place, &["erase", "goes", "--yes", "--in-use"]).status.success());
    assert_eq!(listed(place), []);
}

#[test]
fn what_has_no_label_is_unknown_and_goes_by_its_digest() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    let config = config(place, "goes");
    fill(&config, false);
    let before = listed(place);
    assert!(before.len() == 3 && before.iter().all(|line| line.1.is_none()), "{before:?}");
    let output = terrace(place, &["erase", "goes", "--yes"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("3 namespaces have no label"), "{log}");
    assert_eq!(listed(place), before);
    let digits: String =
        TierNamespace::of(&config).expect("keys").digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for wrong in ["", "0123", "xyzxyzxyz", "00000000"] {
        let output = terrace(place, &["erase", "--digest", wrong, "--yes"]);
        assert!(!output.status.success() || report(&output)["namespaces"] == Value::Array(Vec::new()), "{output:?}");
    }
    assert_eq!(listed(place), before);
    assert!(terrace(place, &["erase", "--digest", &digits[..12], "--yes"]).status.success());
    assert_eq!(listed(place), []);
}

#[test]
fn what_is_sealed_is_listed_under_its_tenant_and_goes_too() {
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path();
    fill(&config(place, "keeps"), true);
    let file = place.join("key");
    std::fs::write(&file, "a secret of sixteen bytes and more").expect("written");
    let config =
        config_with(place, "goes", &format!("[[tenant]]\nname = \"goes\"\nkey_files = [{file:?}]\nencrypt = true\n"));
    fill(&config, true);
    let of = |tenant: &str| listed(place).iter().filter(|line| line.1.as_deref() == Some(tenant)).count();
    assert_eq!((of("goes"), of("keeps")), (3, 3));
    // The key is not needed: who erases need not be able to read.
    std::fs::remove_file(&file).expect("removed");
    let output = terrace(place, &["erase", "goes", "--yes"]);
    assert!(output.status.success() && report(&output)["left"] == false, "{output:?}");
    assert_eq!((of("goes"), of("keeps")), (0, 3));
}
