use std::sync::Mutex;

use super::*;
use crate::object::folder::rig::{Bucket, Fate, Node, Verb, config, pause, segment};

/// Names of all log objects, in order.
async fn names(bucket: &Bucket, node: &Node) -> Vec<LogName> {
    bucket.paths("/log/").await.iter().map(|path| node.shared.names.parse_log(path).unwrap()).collect()
}

async fn object(bucket: &Bucket, node: &Node, name: LogName) -> LogObject {
    let bytes = bucket.get(&node.shared.names.log(name)).await;
    LogObject::decode(&node.shared.shape, &name, &bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_first_goes_at_once_and_what_follows_goes_together() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    let began = tokio::time::Instant::now();
    node.store(1).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
    let answers: Vec<_> = (0..50)
        .map(|_| {
            let record = node.record(2);
            node.publisher.append(vec![LogRecord::Added(record)])
        })
        .collect();
    for answer in answers {
        assert_eq!(answer.await, Ok(Ok(())));
    }
    assert!(began.elapsed() >= config().publish_interval);
    let names = names(&bucket, &node).await;
    assert_eq!(names.iter().map(|name| name.sequence).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(object(&bucket, &node, names[1]).await.records.len(), 50);
    assert_eq!(node.live().len(), 51, "folded here when the answer comes");
}

#[tokio::test(start_paused = true)]
async fn a_failed_object_is_tried_again_under_its_number_with_a_fresh_stamp() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    // The first tries arrive though they seem to have failed.
    let left = Mutex::new(7);
    bucket.set_fates(move |verb, path| {
        let mut left = left.lock().unwrap();
        if verb == Verb::Put && path.as_ref().contains("/log/") && *left > 0 {
            *left -= 1;
            return Fate::DoneButFailed;
        }
        Fate::Served
    });
    let id = node.store(3).await.unwrap();
    let second = node.store(3).await.unwrap();
    let names = names(&bucket, &node).await;
    assert!(names.len() > 2, "{names:?}");
    let firsts: Vec<_> = names.iter().filter(|name| name.sequence == 1).collect();
    let mut objects = Vec::new();
    for name in &firsts {
        objects.push(object(&bucket, &node, **name).await);
    }
    assert!(objects.windows(2).all(|pair| pair[0] == pair[1]), "one content");
    assert!(firsts.windows(2).all(|pair| pair[0].stamp < pair[1].stamp));
    let reader = Node::start(&bucket, 2);
    pause(1.0).await;
    assert_eq!(reader.live(), [id, second]);
    assert_eq!(reader.shared.counters.logs_folded.get(), 2, "each number once");
}

#[tokio::test(start_paused = true)]
async fn a_life_ends_when_nothing_can_be_published_and_the_next_begins_at_one() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    let first = node.store(1).await.unwrap();
    bucket.set_fates(|verb, _| if verb == Verb::Put { Fate::Failed } else { Fate::Served });
    let began = tokio::time::Instant::now();
    let behind = {
        let record = node.record(1);
        let first = node.publisher.append(vec![LogRecord::Added(record)]);
        let record = node.record(1);
        (first, node.publisher.append(vec![LogRecord::Added(record)]))
    };
    assert_eq!(behind.0.await, Ok(Err(())));
    let took = began.elapsed();
    let quarter = config().orphan_age / 4;
    assert!(took >= quarter && took < quarter + Duration::from_secs(30), "{took:?}");
    assert_eq!(behind.1.await, Ok(Err(())), "what waited behind fails too");
    bucket.set_fates(|_, _| Fate::Served);
    let second = node.store(1).await.unwrap();
    assert_ne!(first.writer, second.writer);
    let sequences: Vec<_> = names(&bucket, &node).await.iter().map(|name| (name.writer, name.sequence)).collect();
    assert_eq!(sequences, [(first.writer, 1), (second.writer, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_was_silent_for_long_goes_on_under_a_new_name() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    node.store(1).await.unwrap();
    pause(config().log_retention.as_secs_f64()).await;
    node.store(1).await.unwrap();
    let names = names(&bucket, &node).await;
    assert_ne!(names[0].writer, names[1].writer);
    assert_eq!(names[1].sequence, 1);
}

#[tokio::test(start_paused = true)]
async fn uses_go_along_or_after_a_while_and_only_once() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    let id = node.store(1).await.unwrap();
    for _ in 0..20 {
        node.publisher.used(vec![id]);
    }
    pause(5.0).await;
    assert_eq!(names(&bucket, &node).await.len(), 1, "uses alone wait");
    pause(6.0).await;
    let all = names(&bucket, &node).await;
    assert_eq!(all.len(), 2);
    assert_eq!(object(&bucket, &node, all[1]).await.records.len(), 1);
    let used = node.state.lock().fold.get(id).unwrap().used;
    node.publisher.used(vec![id]);
    node.store(1).await.unwrap();
    let all = names(&bucket, &node).await;
    assert_eq!(object(&bucket, &node, all[2]).await.records.len(), 2, "with what is written anyway");
    assert!(node.state.lock().fold.get(id).unwrap().used > used);
}

#[tokio::test(start_paused = true)]
async fn too_much_is_refused_at_once_and_what_waits_is_bounded() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    bucket.set_fates(|verb, _| if verb == Verb::Put { Fate::Hangs } else { Fate::Served });
    let large = node.record(50_000);
    let bytes = record_bytes(&LogRecord::Added(large));
    let mut waiting = Vec::new();
    for number in 0..40 {
        let id = SegmentId { writer: WriterId(1), number: 1_000 + number };
        waiting.push(node.publisher.append(vec![LogRecord::Added(segment(id, Stamp(1), 50_000))]));
    }
    pause(1.0).await;
    let refused = waiting.iter_mut().map(oneshot::Receiver::try_recv).filter(|answer| *answer == Ok(Err(()))).count();
    assert_eq!(refused, 40 - MAX_WAITING_BYTES / bytes);
    let too_many = vec![LogRecord::Used { id: SegmentId { writer: WriterId(1), number: 1 }, at: Stamp(1) }; 400_000];
    assert_eq!(node.publisher.append(too_many).try_recv(), Ok(Err(())));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_leaves_nothing_behind() {
    let bucket = Bucket::new();
    let node = Node::start(&bucket, 1);
    pause(1.0).await;
    let shared = Arc::clone(&node.shared);
    let (handle, publishing) = publisher(Arc::clone(&shared), SharedLogState::new(WriterId(9)));
    let task = tokio::spawn(publishing);
    let answers: Vec<_> = (0..3).map(|_| handle.append(vec![LogRecord::Added(node.record(1))])).collect();
    handle.used(vec![SegmentId { writer: WriterId(1), number: 1 }]);
    drop(handle);
    task.await.unwrap();
    for answer in answers {
        assert_eq!(answer.await, Ok(Ok(())));
    }
    let last = *names(&bucket, &node).await.last().unwrap();
    assert!(object(&bucket, &node, last).await.records.iter().any(|record| matches!(record, LogRecord::Used { .. })));
}
