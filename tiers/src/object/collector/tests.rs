use bytes::Bytes;
use terrace_config::ObjectConfig;

use super::*;
use crate::object::folder::rig::{Bucket, Fate, Node, Verb, config, pause};

const HOUR: f64 = 3_600.0;

async fn numbers(bucket: &Bucket, node: &Node) -> Vec<u64> {
    bucket.paths("/snapshots/").await.iter().filter_map(|path| node.shared.names.parse_manifest(path)).collect()
}

/// A collector without its task.
fn by_hand(node: &Node, right: Right) -> Collecting {
    let shared = Arc::clone(&node.shared);
    Collecting::new(shared, node.state.clone(), node.folder.clone(), node.publisher.clone(), right)
}

/// What a node that starts now finds.
async fn found(bucket: &Bucket, name: u64) -> Vec<SegmentId> {
    let node = Node::start(bucket, name);
    pause(1.0).await;
    node.live()
}

async fn damage(bucket: &Bucket, path: &Path) {
    let mut bytes = bucket.get(path).await.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bucket.put(path, Bytes::from(bytes)).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_and_the_rest_of_the_log_say_what_the_whole_log_said() {
    let bucket = Bucket::new();
    let (mut a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    a.collect();
    // A node that is cut off while the log is truncated.
    let cut_off = bucket.view();
    let away = Node::start(&cut_off, 3);
    pause(1.0).await;
    let mut gone = Vec::new();
    for round in 0..60_u32 {
        let id = if round % 2 == 0 { &a } else { &b }.store_object(&bucket, 1 + round % 7).await;
        if round % 3 == 0 {
            gone.push(id);
        }
        if round == 5 {
            cut_off.set_fates(|_, _| Fate::Failed);
        }
        if round % 10 == 9 {
            b.publisher.remove(std::mem::take(&mut gone)).await.unwrap().unwrap();
        }
        pause(200.0).await;
    }
    let live = a.live();
    assert_eq!(live.len(), 40);
    assert_eq!(b.live(), live);
    let logs = bucket.paths("/log/").await;
    assert!(logs.len() < 40, "{} log objects of 66 are left after three hours", logs.len());
    assert!(a.shared.counters.logs_removed.get() > 0);
    assert!(numbers(&bucket, &a).await.len() <= 12, "older manifests go");
    assert!(bucket.paths("/lease/").await.len() <= 2);
    assert_eq!(bucket.paths("/segments/").await.len(), 40, "removed segments are deleted");
    assert_eq!(found(&bucket, 4).await, live);
    assert!(away.live().len() < 10);
    cut_off.set_fates(|_, _| Fate::Served);
    pause(40.0).await;
    assert_eq!(away.live(), live);
}

#[tokio::test(start_paused = true)]
async fn one_collects_and_another_takes_over_when_it_stops() {
    let bucket = Bucket::new();
    let mut nodes: Vec<Node> = (1..=3).map(|name| Node::start(&bucket, name)).collect();
    for node in &mut nodes {
        node.collect();
    }
    let collectors = |nodes: &[Node]| nodes.iter().filter(|node| node.shared.counters.is_collector.get() == 1).count();
    for _ in 0..60 {
        pause(5.0).await;
        assert_eq!(collectors(&nodes), 1);
    }
    let holder = nodes.iter().position(|node| node.shared.counters.is_collector.get() == 1).unwrap();
    drop(nodes.remove(holder));
    pause(45.0).await;
    assert_eq!(collectors(&nodes), 1);
    let snapshots = numbers(&bucket, &nodes[0]).await.len();
    nodes[0].store(1).await.unwrap();
    pause(130.0).await;
    assert!(numbers(&bucket, &nodes[0]).await.len() > snapshots);
}

#[tokio::test(start_paused = true)]
async fn two_collectors_at_once_do_no_harm() {
    let bucket = Bucket::new();
    let config =
        || ObjectConfig { collector: Collector::Always, compaction_interval: Duration::from_secs(10), ..config() };
    let mut nodes: Vec<Node> = (1..=3).map(|name| Node::start_with(&bucket, name, 0, config())).collect();
    for node in &mut nodes {
        node.collect();
    }
    pause(1.0).await;
    let mut all = Vec::new();
    for round in 0..200 {
        let id = nodes[round % 3].store_object(&bucket, 3).await;
        if round % 4 == 0 {
            nodes[(round + 1) % 3].publisher.remove(vec![id]).await.unwrap().unwrap();
        } else {
            all.push(id);
        }
        pause(40.0).await;
    }
    pause(130.0).await;
    all.sort();
    for node in &nodes {
        assert_eq!(node.live(), all);
        assert!(node.shared.counters.snapshots.get() > 0);
    }
    assert_eq!(found(&bucket, 9).await, all);
    let left = numbers(&bucket, &nodes[0]).await;
    assert!(left.windows(2).all(|pair| pair[1] == pair[0] + 1), "one history: {left:?}");
    assert_eq!(bucket.paths("/segments/").await.len(), all.len());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_stopped_for_an_hour_does_nothing_more() {
    for stopped_at in ["/parts/", "/snapshots/"] {
        let bucket = Bucket::new();
        let view = bucket.view();
        let node = Node::start(&view, 1);
        pause(1.0).await;
        node.store_object(&bucket, 1).await;
        let lease = Arc::new(Mutex::new(Lease::new(config().lease)));
        lease.lock().unwrap().took(1, node.shared.clock.now(), node.shared.wall.now_ms());
        let right = Right::Lease(lease);
        let mut collecting = by_hand(&node, right.clone());
        collecting.compact(true).await.unwrap();
        node.store_object(&bucket, 1).await;
        let doomed = node.store_object(&bucket, 1).await;
        node.publisher.remove(vec![doomed]).await.unwrap().unwrap();
        let (before, time) = (bucket.paths("/").await, node.time.clone());
        // It stops while it lists, and goes on an hour later.
        let mut stopped = false;
        view.set_fates(move |verb, path| {
            if verb == Verb::List && format!("{path}/").contains(stopped_at) && !stopped {
                stopped = true;
                time.stop_for(Duration::from_secs_f64(HOUR));
            }
            Fate::Served
        });
        assert!(collecting.compact(true).await.is_err());
        assert!(collecting.delete_removed(true).await.is_err());
        assert!(!right.holds(&node.shared));
        assert_eq!(bucket.paths("/").await, before, "stopped at {stopped_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_go_by_the_stores_clock_and_nothing_else_does() {
    let bucket = Bucket::new();
    // Its own clock is of no use.
    let node = Node::start_with(&bucket, 1, -600_000, config());
    pause(1.0).await;
    let live = node.store_object(&bucket, 2).await;
    let orphan = node.shared.names.segment(node.record(1).id);
    bucket.put(&orphan, Bytes::from_static(b"nobody's")).await;
    let foreign = node.shared.names.segments().clone().join("notes.txt");
    bucket.put(&foreign, Bytes::from_static(b"somebody's")).await;
    let mut collecting = by_hand(&node, Right::Always);
    pause(HOUR - 60.0).await;
    let young = node.shared.names.segment(node.record(1).id);
    bucket.put(&young, Bytes::from_static(b"perhaps to be published")).await;
    collecting.sweep(true).await.unwrap();
    assert!(bucket.has(&orphan).await, "not old enough");
    pause(120.0).await;
    let removed = node.store_object(&bucket, 2).await;
    node.publisher.remove(vec![removed]).await.unwrap().unwrap();
    collecting.sweep(false).await.unwrap();
    assert!(bucket.has(&orphan).await, "only looked");
    collecting.sweep(true).await.unwrap();
    collecting.delete_removed(true).await.unwrap();
    let names = &node.shared.names;
    for (path, stays) in [
        (&orphan, false),
        (&foreign, true),
        (&young, true),
        (&names.segment(live), true),
        (&names.segment(removed), true),
    ] {
        assert_eq!(bucket.has(path).await, stays, "{path}");
    }
    assert_eq!(node.shared.counters.segments_orphaned.get(), 1);
    pause(61.0).await;
    collecting.delete_removed(true).await.unwrap();
    assert!(!bucket.has(&names.segment(removed)).await);
}

#[tokio::test(start_paused = true)]
async fn no_orphan_is_deleted_while_something_of_the_log_is_missing() {
    let bucket = Bucket::new();
    let (a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    b.store_object(&bucket, 1).await;
    let hidden = bucket.paths("/log/").await.pop().unwrap();
    bucket.delete(hidden.as_ref()).await;
    b.store_object(&bucket, 1).await;
    pause(60.0).await;
    let mut collecting = by_hand(&a, Right::Always);
    assert!(matches!(collecting.sweep(true).await, Err(Trouble::Stale)));
    assert_eq!((a.shared.counters.log_gaps.get(), a.shared.counters.sweeps_put_off.get()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn no_segment_is_an_orphan_because_a_read_of_the_log_lied() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let live = a.store_object(&bucket, 1).await;
    pause(HOUR * 2.0).await;
    // So old that nobody would name it any more; and the newest time of the store.
    bucket.put(&a.shared.names.leases().clone().join("now"), Bytes::new()).await;
    bucket.set_fates(
        |verb, path| {
            if verb == Verb::Get && path.as_ref().contains("/log/") { Fate::Missing } else { Fate::Served }
        },
    );
    let b = Node::start(&bucket, 2);
    pause(10.0).await;
    let mut collecting = by_hand(&b, Right::Always);
    assert!(matches!(collecting.sweep(true).await, Err(Trouble::Stale)));
    assert!(bucket.has(&a.shared.names.segment(live)).await);
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_snapshot_come_by_what_its_writer_could_not_read() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = a.store_object(&bucket, 1).await;
    let listed = bucket.paths("/log/").await;
    let denying = bucket.view();
    denying.set_fates(
        move |verb, path| {
            if verb == Verb::Get && listed.contains(path) { Fate::Missing } else { Fate::Served }
        },
    );
    let b = Node::start(&denying, 2);
    pause(900.0).await;
    let second = b.store_object(&bucket, 1).await;
    pause(60.0).await;
    assert_eq!((b.live(), b.state.lock().fold.gaps().count()), (vec![second], 1));
    assert_eq!(by_hand(&b, Right::Always).compact(true).await.unwrap(), Some(1));
    assert_eq!(found(&bucket, 3).await, [first, second]);
}

#[tokio::test(start_paused = true)]
async fn room_is_made_from_what_was_not_used_for_longest() {
    let bucket = Bucket::new();
    let bytes = crate::object::folder::rig::SHAPE.object_bytes(1);
    let config = || ObjectConfig { capacity_bytes: bytes * 20, high_watermark: 0.9, low_watermark: 0.5, ..config() };
    let mut node = Node::start_with(&bucket, 1, 0, config());
    let handle = node.collect();
    pause(30.0).await;
    let mut ids = Vec::new();
    for _ in 0..18 {
        ids.push(node.store_object(&bucket, 1).await);
        pause(1.0).await;
    }
    node.publisher.used(vec![ids[0], ids[1]]);
    pause(30.0).await;
    assert_eq!(node.live().len(), 18, "not above the high mark");
    ids.push(node.store_object(&bucket, 1).await);
    pause(15.0).await;
    let mut left: Vec<_> = [&ids[..2], &ids[11..]].concat();
    left.sort();
    assert_eq!(node.live(), left);
    assert_eq!(node.shared.counters.segments_evicted.get(), 9);
    ids.push(node.store_object(&bucket, 1).await);
    handle.full();
    pause(15.0).await;
    assert_eq!(node.live().len(), 10, "a store found no room");
    pause(120.0).await;
    assert_eq!(bucket.paths("/segments/").await.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_used_for_long_goes() {
    let bucket = Bucket::new();
    let mut node =
        Node::start_with(&bucket, 1, 0, ObjectConfig { max_age: Some(Duration::from_secs(1_000)), ..config() });
    node.collect();
    pause(1.0).await;
    let (old, used) = (node.store_object(&bucket, 1).await, node.store_object(&bucket, 1).await);
    pause(900.0).await;
    assert_eq!(node.live(), [old, used]);
    node.publisher.used(vec![used]);
    pause(130.0).await;
    assert_eq!(node.live(), [used]);
    assert_eq!(node.shared.counters.segments_aged.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_emptied_bucket_is_begun_anew() {
    let bucket = Bucket::new();
    let (mut a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    a.collect();
    pause(1.0).await;
    for _ in 0..5 {
        a.store_object(&bucket, 4).await;
        b.store_object(&bucket, 4).await;
        pause(70.0).await;
    }
    let last = numbers(&bucket, &a).await.pop().unwrap();
    bucket.delete("").await;
    let (new, other) = (a.store_object(&bucket, 2).await, b.store_object(&bucket, 2).await);
    pause(HOUR / 2.0).await;
    let mut left = vec![new, other];
    left.sort();
    assert_eq!((a.live(), b.live()), (left.clone(), left.clone()));
    assert_eq!(a.shared.counters.segments_lost.get(), 10);
    assert!(numbers(&bucket, &a).await.pop().unwrap() > last, "snapshots go on");
    assert_eq!(found(&bucket, 3).await, left);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_snapshot_is_replaced_by_the_one_before() {
    for what in ["/snapshots/", "/parts/"] {
        let bucket = Bucket::new();
        let mut node = Node::start(&bucket, 1);
        node.collect();
        pause(1.0).await;
        let mut live = Vec::new();
        for _ in 0..6 {
            live.push(node.store_object(&bucket, 4).await);
            pause(130.0).await;
        }
        let mut last = bucket.paths(what).await;
        if what == "/parts/" {
            // Those of the newest manifest.
            let state = node.state.lock();
            last = state
                .base
                .iter()
                .flat_map(|base| &base.parts)
                .map(|part| node.shared.names.part(part.reference.name()))
                .collect();
        }
        damage(&bucket, last.last().unwrap()).await;
        let reader = Node::start(&bucket, 2);
        pause(1.0).await;
        assert!(reader.shared.counters.logs_bad.get() >= 1, "{what}");
        assert_eq!(reader.live(), live, "{what}");
    }
}

/// Blocks in three snapshots, log objects older than they are kept, and the collector by hand that made them.
async fn three_snapshots(bucket: &Bucket, node: &Node) -> (Vec<SegmentId>, Collecting) {
    pause(1.0).await;
    let mut collecting = by_hand(node, Right::Always);
    let mut live = Vec::new();
    for number in 1..=3 {
        live.push(node.store_object(bucket, 4).await);
        assert_eq!(collecting.compact(false).await.unwrap(), Some(number));
    }
    pause(HOUR * 2.0).await;
    // The newest time of the store.
    bucket.put(&node.shared.names.leases().clone().join("now"), Bytes::new()).await;
    (live, collecting)
}

#[tokio::test(start_paused = true)]
async fn the_log_behind_a_snapshot_that_is_said_not_to_be_there_stays() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    let (live, mut collecting) = three_snapshots(&bucket, &a).await;
    let missing = |number: u64| {
        let path = a.shared.names.manifest(number);
        move |verb, of: &Path| if verb == Verb::Get && *of == path { Fate::Missing } else { Fate::Served }
    };
    bucket.set_fates(missing(1));
    collecting.clean(true).await.unwrap();
    assert_eq!((bucket.paths("/log/").await.len(), a.shared.counters.cleanings_put_off.get()), (3, 1));
    // A reader may find that one only.
    let (two, three) = (missing(2), missing(3));
    bucket.set_fates(move |verb, of| if two(verb, of) == Fate::Missing { Fate::Missing } else { three(verb, of) });
    assert_eq!(found(&bucket, 2).await, live);
    bucket.set_fates(|_, _| Fate::Served);
    collecting.clean(true).await.unwrap();
    assert_eq!(bucket.paths("/log/").await.len(), 2, "the oldest has the first");
}

#[tokio::test(start_paused = true)]
async fn the_log_behind_a_snapshot_that_cannot_be_removed_stays() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    let (_, mut collecting) = three_snapshots(&bucket, &a).await;
    a.store_object(&bucket, 4).await;
    assert_eq!(collecting.compact(false).await.unwrap(), Some(4));
    bucket.set_fates(|verb, path| {
        let manifest = path.as_ref().contains("/snapshots/");
        if verb == Verb::Delete && manifest { Fate::Failed } else { Fate::Served }
    });
    collecting.clean(true).await.unwrap();
    assert_eq!((numbers(&bucket, &a).await, bucket.paths("/log/").await.len()), (vec![1, 2, 3, 4], 4));
    assert_eq!(a.shared.counters.cleanings_put_off.get(), 1);
    bucket.set_fates(|_, _| Fate::Served);
    collecting.clean(true).await.unwrap();
    assert_eq!((numbers(&bucket, &a).await, bucket.paths("/log/").await.len()), (vec![2, 3, 4], 2));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_was_far_behind_finds_its_own_beginning_again() {
    let bucket = Bucket::new();
    let blind = bucket.view();
    let (a, late) = (Node::start(&bucket, 1), Node::start_with(&blind, 2, -200_000, config()));
    pause(1.0).await;
    // It does not see what others write: its first log object stands far before theirs, where they do not look at once.
    blind.set_fates(|verb, _| if verb == Verb::List { Fate::Failed } else { Fate::Served });
    let newer = a.store_object(&bucket, 1).await;
    a.folder.asked();
    pause(1.0).await;
    let first = late.store_object(&blind, 1).await;
    blind.set_fates(|_, _| Fate::Served);
    a.folder.asked();
    pause(1.0).await;
    assert_eq!(by_hand(&a, Right::Always).compact(false).await.unwrap(), Some(1));
    assert_eq!(a.live(), [newer]);
    assert!(late.folder.read_anew().await);
    assert_eq!(late.live(), [newer], "it is neither in the snapshot nor behind where that says that the log begins");
    assert!(late.folder.list_whole().await);
    assert_eq!(late.live(), [newer, first]);
}

#[tokio::test(start_paused = true)]
async fn a_reading_whose_snapshot_was_replaced_meanwhile_is_begun_anew() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    let (live, mut collecting) = three_snapshots(&bucket, &a).await;
    // One manifest is left. It and the log behind it go while a reader is between the two.
    for number in [2, 3] {
        bucket.delete(a.shared.names.manifest(number).as_ref()).await;
    }
    let slow = bucket.view();
    slow.set_fates(
        |verb, path| {
            if verb == Verb::List && path.as_ref().ends_with("/log") { Fate::Failed } else { Fate::Served }
        },
    );
    let b = Node::start(&slow, 2);
    // The listing was refused once, and is tried again in a moment.
    pause(0.02).await;
    collecting.compact(true).await.unwrap();
    bucket.delete(a.shared.names.manifest(1).as_ref()).await;
    bucket.delete("/log/").await;
    slow.set_fates(|_, _| Fate::Served);
    pause(30.0).await;
    assert_eq!(b.live(), live);
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_written_nothing_is_folded_again_and_orphans_still_go() {
    let bucket = Bucket::new();
    let (mut a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    a.collect();
    for _ in 0..6 {
        b.store_object(&bucket, 3).await;
        pause(1_500.0).await;
    }
    // Longer than tombstones and writers are kept.
    pause(4.0 * HOUR).await;
    let folded = a.shared.counters.logs_folded.get();
    let orphan = a.shared.names.segment(SegmentId { writer: crate::object::id::WriterId(77), number: 1 });
    bucket.put(&orphan, Bytes::from_static(b"nobody's")).await;
    pause(4.0 * HOUR).await;
    assert_eq!(a.shared.counters.logs_folded.get(), folded);
    assert!(!bucket.has(&orphan).await);
    assert_eq!((a.live().len(), found(&bucket, 9).await), (6, a.live()));
}
