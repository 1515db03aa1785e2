use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::fsck::fsck;
use super::problems::{MAX_PROBLEMS, Problems};
use super::rebuild::rebuild;
use super::{Admin, AdminError, stat};
use crate::object::folder::rig::{Bucket, Node, SHAPE, config, pause};
use crate::object::id::{SegmentId, WriterId};
use crate::object::names::Names;
use crate::object::record::SegmentRecord;
use crate::object::segment::{HEADER_BYTES, encode_header, encode_index};

fn payload(position: u32) -> Vec<u8> {
    (0..SHAPE.block_bytes).map(|byte| (byte.wrapping_mul(31) ^ position) as u8).collect()
}

/// A whole segment: its record and its object.
fn segment(writer: u64, number: u64, blocks: u32) -> (SegmentRecord, Vec<u8>) {
    let id = SegmentId { writer: WriterId(writer), number };
    let keys: Vec<u8> = (0..blocks)
        .flat_map(|block| {
            let mut key = [0_u8; 36];
            key[..8].copy_from_slice(&writer.to_le_bytes());
            key[8..16].copy_from_slice(&number.to_le_bytes());
            key[16..20].copy_from_slice(&block.to_le_bytes());
            key
        })
        .collect();
    let crcs: Vec<u32> = (0..blocks).map(|block| crc32fast::hash(&payload(block))).collect();
    let created = crate::object::id::Stamp(1_577_836_800_000 + number);
    let record = SHAPE.record(id, created, keys.into(), crcs.into()).expect("a record");
    let mut object = Vec::new();
    for position in 0..blocks {
        let (key, crc) = (record.key(position).expect("a key"), record.crc32(position).expect("a CRC32"));
        object.extend_from_slice(&encode_header(&SHAPE, id, position, &key, crc));
        object.extend_from_slice(&payload(position));
    }
    object.extend_from_slice(&encode_index(&SHAPE, &record));
    (record, object)
}

fn path(record: &SegmentRecord) -> Path {
    Names::new("prefix", &SHAPE.namespace).segment(record.id)
}

/// Three published segments of two blocks, one that was removed, and one that no log names.
async fn filled() -> (Bucket, Node, Vec<SegmentRecord>) {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    let mut records = Vec::new();
    for number in 1..=5 {
        let (record, object) = segment(9, number, 2);
        bucket.put(&path(&record), object).await;
        records.push(record);
    }
    for record in &records[..4] {
        let added = crate::object::log::LogRecord::Added(Arc::new(record.clone()));
        assert_eq!(node.publisher.append(vec![added]).await, Ok(Ok(())));
    }
    assert_eq!(node.publisher.remove(vec![records[3].id]).await, Ok(Ok(())));
    (bucket, node, records)
}

#[tokio::test(start_paused = true)]
async fn a_sound_namespace_is_told_as_it_is() {
    let (bucket, _node, records) = filled().await;
    let reader = Node::start(&bucket, 2);
    let shared = Arc::clone(&reader.shared);
    let mut steps = Vec::new();
    let lines = stat::list(&shared, &mut |progress| steps.push(progress.step)).await.expect("listed");
    assert_eq!(
        lines.iter().map(|line| line.id).collect::<Vec<_>>(),
        records[..3].iter().map(|r| r.id).collect::<Vec<_>>()
    );
    assert_eq!((lines[0].blocks, lines[0].bytes, lines[0].last_used), (2, records[0].bytes, records[0].created));
    assert!(steps.contains(&"reading the log"));

    let stat = stat::stat(&shared, &mut |_| {}).await.expect("summed up");
    assert_eq!((stat.segments, stat.blocks, stat.bytes, stat.removed), (3, 6, 3 * records[0].bytes, 1));
    assert_eq!((stat.logs, stat.writers, stat.snapshot, stat.lease_term), (5, 1, None, None));
    assert_eq!(stat.newest, Some(records[2].created));

    for deep in [false, true] {
        let checked = fsck(&shared, deep, &mut |_| {}).await.expect("checked");
        assert_eq!((checked.segments, checked.blocks, checked.logs), (3, 6, 5));
        assert_eq!((checked.orphans, checked.orphan_bytes), (1, records[4].bytes));
        assert_eq!(checked.problems, []);
    }
}

#[tokio::test(start_paused = true)]
async fn every_damage_is_found_and_named() {
    let (bucket, node, records) = filled().await;
    let reader = Node::start(&bucket, 2);
    let shared = Arc::clone(&reader.shared);
    // One segment gone, one short, one with a flipped bit in its second block; an undecodable log object; strangers.
    bucket.delete(path(&records[0]).as_ref()).await;
    let object = bucket.get(&path(&records[1])).await;
    bucket.put(&path(&records[1]), object.slice(..object.len() - 1)).await;
    let mut object = bucket.get(&path(&records[2])).await.to_vec();
    object[SHAPE.stride() as usize + HEADER_BYTES + 7] ^= 4;
    bucket.put(&path(&records[2]), object).await;
    let logs = bucket.paths("/log/").await;
    let last = logs.last().expect("a log object").clone();
    let bytes = bucket.get(&last).await.slice(1..);
    bucket.put(&last, bytes).await;
    for folder in [shared.names.segments(), shared.names.logs()] {
        bucket.put(&folder.clone().join("x"), vec![1]).await;
    }
    let shallow = fsck(&shared, false, &mut |_| {}).await.expect("checked");
    let deep = fsck(&shared, true, &mut |_| {}).await.expect("checked");
    let told = |checked: &super::Checked, object: &str| {
        let found = checked.problems.iter().find(|problem| problem.object == object);
        found.map_or("", |problem| problem.what.as_str()).to_owned()
    };
    for checked in [&shallow, &deep] {
        assert!(told(checked, path(&records[0]).as_ref()).contains("gone"), "{checked:?}");
        assert!(told(checked, path(&records[1]).as_ref()).contains("bytes"), "{checked:?}");
        assert!(told(checked, last.as_ref()).contains("log object"), "{checked:?}");
        assert!(told(checked, shared.names.segments().clone().join("x").as_ref()).contains("no name"), "{checked:?}");
        assert!(told(checked, shared.names.logs().clone().join("x").as_ref()).contains("no name"), "{checked:?}");
    }
    assert_eq!(told(&shallow, path(&records[2]).as_ref()), "");
    assert_eq!(told(&deep, path(&records[2]).as_ref()), "segment: 1 damaged blocks, at positions 1");
    // The removal was in the damaged log object: the segment counts as live, and it is whole.
    assert_eq!((shallow.segments, shallow.problems.len(), deep.problems.len()), (4, 5, 6));
    drop(node);
}

#[tokio::test(start_paused = true)]
async fn a_lost_log_is_written_anew() {
    let (bucket, mut node, records) = filled().await;
    node.stop();
    bucket.delete("/log/").await;
    // One that cannot be named again.
    let object = bucket.get(&path(&records[4])).await;
    bucket.put(&path(&records[4]), object.slice(..object.len() - 1)).await;
    let reader = Node::start(&bucket, 2);
    let shared = Arc::clone(&reader.shared);
    for apply in [false, true] {
        let rebuilt = rebuild(Arc::clone(&shared), WriterId(77), apply, &mut |_| {}).await.expect("rebuilt");
        assert_eq!((rebuilt.segments_read, rebuilt.segments_added, rebuilt.blocks_added), (5, 4, 8));
        assert_eq!(
            rebuilt.unreadable.iter().map(|problem| problem.object.as_str()).collect::<Vec<_>>(),
            [path(&records[4]).as_ref()]
        );
        assert_eq!(bucket.paths("/log/").await.is_empty(), !apply);
    }
    let again = rebuild(Arc::clone(&shared), WriterId(78), true, &mut |_| {}).await.expect("rebuilt");
    assert_eq!((again.segments_read, again.segments_added), (1, 0));
    // A node that starts finds what was named.
    let node = Node::start(&bucket, 3);
    pause(1.0).await;
    assert_eq!(node.live(), records[..4].iter().map(|record| record.id).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_was_removed_stays_removed() {
    let (bucket, _node, records) = filled().await;
    let reader = Node::start(&bucket, 2);
    let shared = Arc::clone(&reader.shared);
    let rebuilt = rebuild(Arc::clone(&shared), WriterId(77), true, &mut |_| {}).await.expect("rebuilt");
    // The orphan alone.
    assert_eq!((rebuilt.segments_read, rebuilt.segments_added), (1, 1));
    let lines = stat::list(&shared, &mut |_| {}).await.expect("listed");
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.id != records[3].id));
}

#[test]
fn a_bucket_is_found_its_namespaces_too() {
    let store = Arc::new(InMemory::new());
    let admin = Admin::over("object", &config(), Arc::<InMemory>::clone(&store), Path::from("prefix")).expect("opened");
    assert_eq!(admin.namespaces().expect("listed"), [[0_u8; 32]; 0]);
    // Nothing there: no error, and nothing to tell.
    assert_eq!(admin.stat([3; 32], &mut |_| {}).expect("told"), super::NamespaceStat::default());
    let put = |path: &Path, bytes: Vec<u8>| {
        admin.runtime.block_on(async { store.put(path, bytes.into()).await }).expect("written");
    };
    let (record, object) = segment(9, 1, 2);
    put(&path(&record), object);
    put(&Path::from("prefix/notes/x"), vec![1]);
    assert_eq!(admin.namespaces().expect("listed"), [SHAPE.namespace]);
    let rebuilt = admin.rebuild_index(SHAPE.namespace, true, &mut |_| {}).expect("rebuilt");
    assert_eq!((rebuilt.segments_added, rebuilt.bytes_added), (1, record.bytes));
    assert_eq!(admin.list(SHAPE.namespace, &mut |_| {}).expect("listed").len(), 1);

    // A namespace in which nothing is sound.
    put(&Path::from(format!("prefix/{}/segments/00/x", "05".repeat(32))), vec![1; 100]);
    assert!(matches!(admin.fsck([5; 32], false, &mut |_| {}), Err(AdminError::Shapeless)));
}

#[test]
fn a_round_of_the_collector_is_told_before_it_is_done() {
    let store = Arc::new(InMemory::new());
    let (record, object) = segment(9, 1, 2);
    // Room for one segment of two.
    let config = terrace_config::ObjectConfig { capacity_bytes: record.bytes + 1, ..config() };
    let admin = Admin::over("object", &config, Arc::<InMemory>::clone(&store), Path::from("prefix")).expect("opened");
    let (other, other_object) = segment(9, 2, 2);
    for (record, object) in [(&record, object), (&other, other_object)] {
        admin.runtime.block_on(async { store.put(&path(record), object.into()).await }).expect("written");
    }
    admin.rebuild_index(SHAPE.namespace, true, &mut |_| {}).expect("rebuilt");
    let would = admin.collect(SHAPE.namespace, false, &mut |_| {}).expect("told");
    assert!(would.evicted > 0 && would.snapshot.is_none(), "{would:?}");
    assert_eq!(admin.list(SHAPE.namespace, &mut |_| {}).expect("listed").len(), 2);
    let did = admin.collect(SHAPE.namespace, true, &mut |_| {}).expect("done");
    assert_eq!((did.evicted, did.failures), (would.evicted, 0));
    assert!(did.snapshot.is_some(), "{did:?}");
    let stat = admin.stat(SHAPE.namespace, &mut |_| {}).expect("summed up");
    assert_eq!((stat.segments + did.evicted, stat.removed, stat.snapshot), (2, did.evicted, did.snapshot));
}

#[test]
fn problems_are_bounded() {
    let (mut all, mut some) = (Problems::default(), Problems::default());
    for _ in 0..MAX_PROBLEMS - 1 {
        all.add(&Path::from("x"), "wrong");
    }
    (0..3).for_each(|_| some.add(&Path::from("y"), "wrong"));
    all.extend(some);
    all.add(&Path::from("z"), "wrong");
    assert_eq!((all.all.len(), all.more), (MAX_PROBLEMS, 3));
}
