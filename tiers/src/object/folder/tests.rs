use std::time::Duration;

use bytes::Bytes;

use super::SharedLogState;
use super::rig::{Bucket, Fate, Node, Verb, config, pause};
use crate::object::id::{Stamp, WriterId};
use crate::object::port::{Change, Report};

/// Follows the changes that the manager's side is told, as that side does.
fn told(node: &mut Node) -> Vec<crate::object::id::SegmentId> {
    let mut live = std::collections::BTreeSet::new();
    let mut catalogs = 0;
    while let Some(change) = node.changes.take() {
        match change {
            Change::Catalog(blocks) => {
                catalogs += 1;
                live.clear();
                let ids = node.state.lock().fold.live().map(|live| live.record.id).collect::<Vec<_>>();
                live.extend(ids.into_iter().filter(|id| blocks.segment(*id).is_some()));
            }
            Change::Added { segment, .. } => {
                live.insert(segment.id);
            }
            Change::Removed(id) => {
                live.remove(&id);
            }
        }
    }
    assert!(catalogs > 0, "the first reading makes a catalog");
    live.into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_see_each_others_segments_and_removals() {
    let bucket = Bucket::new();
    let (mut a, mut b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    let first = a.store(3).await.unwrap();
    let second = b.store(5).await.unwrap();
    let third = a.store(2).await.unwrap();
    b.folder.asked();
    a.folder.asked();
    pause(1.0).await;
    let mut all = vec![first, second, third];
    all.sort();
    assert_eq!((a.live(), b.live()), (all.clone(), all));
    b.publisher.remove(vec![first]).await.unwrap().unwrap();
    a.folder.asked();
    pause(1.0).await;
    let mut left = vec![second, third];
    left.sort();
    assert_eq!((a.live(), b.live()), (left.clone(), left.clone()));
    assert_eq!((told(&mut a), told(&mut b)), (left.clone(), left.clone()));
    // One that comes later knows the same.
    let mut c = Node::start(&bucket, 3);
    pause(1.0).await;
    assert_eq!(c.live(), left);
    assert_eq!(told(&mut c), left);
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_lists_ever_more_rarely_and_one_that_is_asked_often() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(300.0).await;
    let before = node.shared.counters.folds.get();
    pause(300.0).await;
    let idle = node.shared.counters.folds.get() - before;
    assert!((10..=12).contains(&idle), "every 30 s: {idle} in 300 s");
    for _ in 0..100 {
        node.folder.asked();
        pause(0.1).await;
    }
    let asked = node.shared.counters.folds.get() - before - idle;
    assert!((18..=22).contains(&asked), "every 500 ms: {asked} in 10 s");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_shows_late_is_found_by_the_gap_that_it_leaves() {
    let bucket = Bucket::new();
    let (a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    let hidden = bucket.paths("/log/").await.pop().unwrap();
    let bytes = bucket.get(&hidden).await;
    bucket.delete(hidden.as_ref()).await;
    pause(10.0).await;
    let second = a.store(1).await.unwrap();
    b.folder.asked();
    pause(1.0).await;
    assert_eq!(b.live(), [second]);
    // Too old for a listing that goes back a few seconds.
    bucket.put(&hidden, bytes).await;
    pause(70.0).await;
    assert_eq!(b.live(), [first, second]);
}

#[tokio::test(start_paused = true)]
async fn what_never_shows_is_given_up() {
    let bucket = Bucket::new();
    let (a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    a.store(1).await.unwrap();
    bucket.delete("/log/").await;
    let second = a.store(1).await.unwrap();
    pause(120.0).await;
    assert_eq!(b.live(), [second]);
    assert!(b.state.lock().fold.gaps().count() == 1);
    let lists = b.shared.counters.lists.get();
    pause(1_900.0).await;
    assert!(b.state.lock().fold.gaps().count() == 0);
    let lists = b.shared.counters.lists.get() - lists;
    assert!(lists < 200, "{lists} listings in half an hour for one that is missing");
}

/// Answers to reads of the log: the first `lies` say that nothing is there.
fn lie(bucket: &Bucket, lies: u32) {
    let mut left = lies;
    bucket.set_fates(move |verb, path| {
        if verb != Verb::Get || !path.as_ref().contains("/log/") || left == 0 {
            return Fate::Served;
        }
        left -= 1;
        Fate::Missing
    });
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_and_said_not_to_be_there_is_asked_for_again() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    for (name, lies) in [(2, 1), (3, 2), (4, 4)] {
        lie(&bucket, lies);
        let node = Node::start(&bucket, name);
        pause(3.0).await;
        assert_eq!(node.live(), [first]);
        assert_eq!((node.shared.counters.logs_gone.get(), node.state.lock().fold.gaps().count()), (u64::from(lies), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_said_not_to_be_there_for_long_is_a_gap_that_closes_when_it_comes() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    lie(&bucket, u32::MAX);
    let mut b = Node::start(&bucket, 2);
    pause(10.0).await;
    assert!(b.live().is_empty());
    assert_eq!(b.state.lock().fold.gaps().collect::<Vec<_>>(), [first.writer], "though it is the last of its writer");
    let resyncs = b.shared.counters.resyncs.get();
    pause(300.0).await;
    assert_eq!(b.shared.counters.resyncs.get(), resyncs, "everything is not read again for each listing");
    lie(&bucket, 0);
    pause(300.0).await;
    assert_eq!((b.live(), told(&mut b)), (vec![first], vec![first]));
    assert_eq!(b.state.lock().fold.gaps().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_is_not_given_up_while_it_would_be_kept() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    let listed = bucket.paths("/log/").await;
    let denying = bucket.view();
    denying.set_fates(
        move |verb, path| {
            if verb == Verb::Get && listed.contains(path) { Fate::Missing } else { Fate::Served }
        },
    );
    let b = Node::start(&denying, 2);
    let mut since = Vec::new();
    for _ in 0..4 {
        pause(1_750.0).await;
        since.push(a.store(1).await.unwrap());
        assert_eq!(b.state.lock().fold.gaps().collect::<Vec<_>>(), [first.writer]);
    }
    let resyncs = b.shared.counters.resyncs.get();
    assert!((2..8).contains(&resyncs), "everything is read anew now and then: {resyncs}");
    denying.set_fates(|_, _| Fate::Served);
    pause(1_000.0).await;
    since.insert(0, first);
    assert_eq!((b.live(), b.state.lock().fold.gaps().count()), (since, 0));
    assert_eq!(b.shared.counters.log_gaps.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_and_never_there_is_given_up_at_last() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    a.store(1).await.unwrap();
    let listed = bucket.paths("/log/").await;
    let mut since = Vec::new();
    bucket.set_fates(
        move |verb, path| {
            if verb == Verb::Get && listed.contains(path) { Fate::Missing } else { Fate::Served }
        },
    );
    let b = Node::start(&bucket, 2);
    for _ in 0..30 {
        pause(400.0).await;
        since.push(a.store(1).await.unwrap());
    }
    pause(60.0).await;
    assert_eq!((b.live(), b.state.lock().fold.gaps().count()), (since, 0));
}

#[tokio::test(start_paused = true)]
async fn what_the_node_itself_has_written_is_asked_for_again_too() {
    let bucket = Bucket::new();
    let a = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    lie(&bucket, u32::MAX);
    assert!(a.folder.read_anew().await);
    assert_eq!((a.live(), a.state.lock().fold.gaps().count()), (vec![], 1));
    lie(&bucket, 0);
    pause(300.0).await;
    assert_eq!((a.live(), a.state.lock().fold.gaps().count()), (vec![first], 0));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_said_not_to_be_there_is_not_taken_for_none() {
    let bucket = Bucket::new();
    let mut a = Node::start(&bucket, 1);
    a.collect();
    pause(1.0).await;
    let first = a.store_object(&bucket, 1).await;
    pause(3_600.0).await;
    assert!(!bucket.paths("/snapshots/").await.is_empty());
    bucket.set_fates(|verb, path| {
        if verb == Verb::Get && path.as_ref().contains("/snapshots/") { Fate::Missing } else { Fate::Served }
    });
    let mut b = Node::start(&bucket, 2);
    pause(60.0).await;
    assert!(b.state.lock().complete.is_none() && matches!(b.reports.try_recv(), Ok(Report::Unreachable)));
    bucket.set_fates(|_, _| Fate::Served);
    pause(60.0).await;
    assert_eq!(b.live(), [first]);
}

#[tokio::test(start_paused = true)]
async fn damaged_objects_are_counted_and_passed_over() {
    let bucket = Bucket::new();
    let (a, b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    a.store(1).await.unwrap();
    let damaged = bucket.paths("/log/").await.pop().unwrap();
    let mut bytes = bucket.get(&damaged).await.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bucket.put(&damaged, Bytes::from(bytes)).await;
    let second = a.store(1).await.unwrap();
    b.folder.asked();
    pause(1.0).await;
    assert_eq!(b.live(), [second]);
    assert_eq!(b.shared.counters.logs_bad.get(), 1);
    // It is not read again.
    let gets = b.shared.counters.gets.get();
    pause(200.0).await;
    assert_eq!(b.shared.counters.gets.get(), gets);
    assert_eq!(b.shared.counters.logs_bad.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn clocks_that_differ_hide_nothing_for_long() {
    let bucket = Bucket::new();
    let fast = Node::start_with(&bucket, 1, 90_000, config());
    let slow = Node::start_with(&bucket, 2, -90_000, config());
    let reader = Node::start(&bucket, 3);
    pause(1.0).await;
    let mut all = vec![fast.store(1).await.unwrap()];
    pause(31.0).await;
    // The slow node has seen the fast one's stamp by now, and goes by it.
    for _ in 0..5 {
        all.push(slow.store(1).await.unwrap());
        all.push(fast.store(1).await.unwrap());
        for node in [&fast, &slow, &reader] {
            node.folder.asked();
        }
        pause(1.0).await;
        all.sort();
        assert_eq!(reader.live(), all);
    }
    assert!(slow.shared.counters.clock_behind_ms.get() >= 179_000);
}

#[test]
fn clocks_that_go_wrong_one_after_another_do_not_add_up() {
    const MINUTE_MS: u64 = 60_000;
    let nodes = [1, 2].map(|name| SharedLogState::new(WriterId(name)));
    let mut newest = Stamp(0);
    for minute in 0..600_u64 {
        let wall_ms = (10_000 + minute) * MINUTE_MS;
        for (node, turn) in nodes.iter().zip(0..) {
            // Each is ten minutes fast for a while, in turn.
            let off_ms = if minute / 20 % 2 == turn { 10 * MINUTE_MS } else { 0 };
            let mut state = node.lock();
            state.observe(newest, wall_ms + off_ms);
            let stamp = state.stamp(wall_ms + off_ms);
            assert!(stamp > newest, "later than what was seen");
            assert!(stamp.0 <= wall_ms + 26 * MINUTE_MS, "{} ms ahead after {minute} minutes", stamp.0 - wall_ms);
            newest = stamp;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_is_said_to_be_unreachable_until_it_can() {
    let bucket = Bucket::new();
    let writer = Node::start(&bucket, 1);
    pause(1.0).await;
    let id = writer.store(1).await.unwrap();
    bucket.set_fates(|verb, _| if verb == Verb::List { Fate::Hangs } else { Fate::Served });
    let mut node = Node::start(&bucket, 2);
    pause(5.0).await;
    assert!(matches!(node.reports.try_recv(), Ok(Report::Unreachable)));
    assert!(node.reports.try_recv().is_err(), "it is said once");
    assert!(node.changes.take().is_none());
    bucket.set_fates(|_, _| Fate::Served);
    pause(400.0).await;
    assert_eq!(told(&mut node), [id]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_could_not_list_for_long_reads_everything_anew() {
    let bucket = Bucket::new();
    let (a, mut b) = (Node::start(&bucket, 1), Node::start(&bucket, 2));
    pause(1.0).await;
    let first = a.store(1).await.unwrap();
    let own = b.store(1).await.unwrap();
    pause(31.0).await;
    bucket.set_fates(|verb, _| if verb == Verb::List { Fate::Failed } else { Fate::Served });
    pause(3_000.0).await;
    let meanwhile = b.store(1).await.unwrap();
    a.publisher.remove(vec![first, own]).await.unwrap().unwrap();
    bucket.set_fates(|_, _| Fate::Served);
    let resyncs = b.shared.counters.resyncs.get();
    pause(60.0).await;
    assert_eq!(b.shared.counters.resyncs.get(), resyncs + 1);
    assert_eq!(b.live(), [meanwhile]);
    assert_eq!(told(&mut b), [meanwhile], "what was its own and is gone does not come back");
}

#[tokio::test(start_paused = true)]
async fn one_percent_of_failures_changes_nothing() {
    let bucket = Bucket::new();
    let mut turn = 0_u64;
    bucket.set_fates(move |verb, _| {
        turn = super::scramble(turn);
        match turn % 100 {
            0 => Fate::Failed,
            1 if verb == Verb::Put => Fate::DoneButFailed,
            _ => Fate::Served,
        }
    });
    let mut nodes: Vec<Node> = (1..=4).map(|name| Node::start(&bucket, name)).collect();
    pause(5.0).await;
    let mut all = Vec::new();
    for round in 0..200 {
        all.extend(nodes[round % 4].store(1).await);
        if round % 7 == 0
            && let Some(id) = all.pop()
        {
            nodes[(round + 1) % 4].publisher.remove(vec![id]).await.unwrap().unwrap();
        }
    }
    pause(Duration::from_secs(130).as_secs_f64()).await;
    all.sort();
    for node in &mut nodes {
        assert_eq!(node.live(), all);
        assert_eq!(told(node), all);
    }
}
