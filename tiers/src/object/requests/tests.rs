use std::ops::Range;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::testing::{FaultyStore, Ignores, Op, TokioClock, Wrong, test_config};
use super::*;
use crate::object::id::WriterId;

const SECOND: Duration = Duration::from_secs(1);

struct Rig {
    store: FaultyStore,
    clock: TokioClock,
    counters: Arc<Counters>,
    requests: Requests,
}

impl Rig {
    fn new(change: impl FnOnce(&mut ObjectConfig)) -> Self {
        let mut config = test_config();
        change(&mut config);
        let (store, clock, counters) = (FaultyStore::new(), TokioClock::new(), Arc::<Counters>::default());
        let (shared, wall) = (Arc::new(clock.clone()), Arc::new(clock.clone()));
        let requests = Requests::new(Arc::new(store.clone()), &config, shared, wall, Arc::clone(&counters), 7);
        Self { store, clock, counters, requests }
    }

    fn within(&self, time: Duration) -> Time {
        self.clock.now().plus(time)
    }

    async fn object(&self, name: &str, bytes: usize) -> Path {
        let path = Path::from(name);
        self.store.inner.put(&path, content(0..bytes as u64).into()).await.expect("written");
        path
    }

    async fn read(&self, path: &Path, range: Range<u64>, time: Duration) -> Result<Vec<u8>, RequestError> {
        let mut body = self.requests.get_range(path, range, self.within(time)).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await? {
            bytes.extend_from_slice(&piece);
        }
        assert!(body.has_ended());
        Ok(bytes)
    }

    async fn stored(&self, path: &Path) -> Bytes {
        self.store.inner.get(path).await.expect("is there").bytes().await.expect("is read")
    }
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 31 % 251) as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn passing_failures_are_tried_again_and_lasting_ones_are_not() {
    let rig = Rig::new(|_| {});
    let path = rig.object("a", 100).await;
    for wrong in [Wrong::Status(500), Wrong::Reset, Wrong::OtherRange, Wrong::ShortBody, Wrong::BrokenBody] {
        rig.store.plan(Op::Get, wrong, 2);
        assert_eq!(rig.read(&path, 10..90, 10 * SECOND).await, Ok(content(10..90)), "{wrong:?}");
    }
    assert_eq!(rig.counters.retries.get(), 10);
    let before = rig.counters.gets.get();
    rig.store.plan(Op::Get, Wrong::Status(403), 1);
    assert!(matches!(rig.read(&path, 0..9, SECOND).await, Err(RequestError::Denied(_))));
    assert_eq!(rig.read(&Path::from("gone"), 0..9, SECOND).await, Err(RequestError::NotFound));
    assert_eq!(rig.counters.gets.get(), before + 2);
    // Four times again, no more.
    rig.store.plan(Op::Get, Wrong::Status(500), 100);
    assert!(matches!(rig.read(&path, 0..9, 100 * SECOND).await, Err(RequestError::Failed(_))));
    assert_eq!(rig.counters.gets.get(), before + 7);
    assert_eq!(rig.counters.in_flight.get(), 0);
    assert_eq!(rig.counters.request_failures.get(), 2, "what is not there is no failure");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_says_nothing_is_silent_until_it_answers() {
    let rig = Rig::new(|config| config.hedge_share = 0.0);
    let path = rig.object("a", 100).await;
    for wrong in [Wrong::Hang, Wrong::Reset, Wrong::Status(500)] {
        rig.store.plan(Op::Get, wrong, 100);
        assert!(rig.read(&path, 0..9, SECOND).await.is_err(), "{wrong:?}");
        assert!(!rig.requests.is_silent(), "{wrong:?}: for a second only");
        tokio::time::sleep(SECOND).await;
        assert_eq!(
            rig.requests.head(&Path::from("gone"), rig.within(SECOND)).await.err(),
            Some(RequestError::NotFound)
        );
        assert!(!rig.requests.is_silent(), "{wrong:?}: it has refused something");
        assert!(rig.read(&path, 0..9, SECOND).await.is_err(), "{wrong:?}");
        tokio::time::sleep(2 * SECOND).await;
        assert!(rig.requests.is_silent(), "{wrong:?}");
        rig.store.unplan();
        assert!(rig.read(&path, 0..9, SECOND).await.is_ok(), "{wrong:?}");
        tokio::time::sleep(10 * SECOND).await;
        assert!(!rig.requests.is_silent(), "{wrong:?}: nobody asks");
    }
    rig.store.plan(Op::Put, Wrong::Hang, 100);
    let place = Path::from("b");
    let put = rig.requests.put(Class::Store, &place, PutPayload::from(vec![1; 10]), true, rig.within(5 * SECOND));
    assert_eq!(put.await, Err(RequestError::Deadline));
    assert!(!rig.requests.is_silent(), "an upload that takes long says nothing of the store");
}

#[tokio::test(start_paused = true)]
async fn everything_ends_by_its_deadline() {
    let rig = Rig::new(|config| config.hedge_share = 0.0);
    let path = rig.object("a", 100).await;
    let others = [Op::Get, Op::Head, Op::Put, Op::List, Op::Delete, Op::Begin];
    for op in others {
        rig.store.plan(op, Wrong::Hang, 100);
    }
    let begun = rig.clock.now();
    let deadline = rig.within(5 * SECOND);
    let requests = &rig.requests;
    let payload = || PutPayload::from(vec![1; 10]);
    assert!(rig.read(&path, 0..9, 5 * SECOND).await.is_err());
    assert!(requests.get(Class::Sync, &path, 100, deadline).await.is_err());
    let outcomes = [
        requests.head(&path, rig.within(SECOND)).await.map(|_| ()),
        requests.put(Class::Store, &path, payload(), true, rig.within(SECOND)).await,
        requests.list(&path, None, 10, rig.within(SECOND)).await.map(|_| ()),
        requests.put_multipart(&path, vec![payload()], rig.within(SECOND)).await,
        requests.delete(vec![path.clone()], rig.within(SECOND)).await.remove(0),
    ];
    for outcome in outcomes {
        assert_eq!(outcome, Err(RequestError::Deadline));
    }
    assert!(rig.clock.now().since(begun) <= 11 * SECOND, "{:?}", rig.clock.now().since(begun));
    // A body that stalls, and pauses between attempts, end in time too.
    let rig = Rig::new(|_| {});
    let path = rig.object("a", 100).await;
    rig.store.plan(Op::Get, Wrong::StalledBody, 1);
    assert_eq!(rig.read(&path, 0..90, SECOND).await, Err(RequestError::Deadline));
    rig.store.plan(Op::Get, Wrong::Status(503), 100);
    let begun = rig.clock.now();
    assert_eq!(rig.read(&path, 0..90, SECOND / 5).await, Err(RequestError::Throttled));
    assert!(rig.clock.now().since(begun) <= SECOND / 5);
    assert_eq!(rig.counters.in_flight.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_is_sent_again_while_there_is_time() {
    let rig = Rig::new(|config| config.hedge_share = 0.0);
    let path = rig.object("a", 100).await;
    rig.store.plan(Op::Get, Wrong::Hang, 1);
    assert_eq!(rig.read(&path, 0..90, 4 * SECOND).await, Ok(content(0..90)));
    assert!(rig.counters.concurrency.get() < 32, "it counts as a sign of too many requests");
    rig.store.plan(Op::Get, Wrong::StalledBody, 1);
    assert_eq!(rig.read(&path, 0..90, 4 * SECOND).await, Ok(content(0..90)));
    rig.store.plan(Op::List, Wrong::Hang, 1);
    let page = rig.requests.list(&Path::default(), None, 10, rig.within(4 * SECOND)).await;
    assert!(page.is_ok_and(|page| page.len() == 1));
}

#[tokio::test(start_paused = true)]
async fn answers_that_hold_something_else_are_refused() {
    let rig = Rig::new(|_| {});
    let path = rig.object("a", 100).await;
    for wrong in [Wrong::LongBody, Wrong::OtherRange] {
        rig.store.plan(Op::Get, wrong, 5);
        assert_eq!(rig.read(&path, 10..90, 60 * SECOND).await, Err(RequestError::Truncated), "{wrong:?}");
    }
    let rig = Rig::new(|_| {});
    let path = rig.object("a", 100).await;
    assert_eq!(rig.read(&path, 50..101, 60 * SECOND).await, Err(RequestError::Truncated), "behind the end");
    assert_eq!(rig.read(&path, 100..110, 60 * SECOND).await, Err(RequestError::Truncated), "all behind the end");
    assert_eq!(rig.read(&path, 5..5, 60 * SECOND).await, Err(RequestError::Truncated), "nothing");
}

#[tokio::test(start_paused = true)]
async fn whole_objects_and_ends_of_objects_are_read() {
    let rig = Rig::new(|_| {});
    let path = rig.object("a", 1_000).await;
    let get = |most| rig.requests.get(Class::Sync, &path, most, rig.within(60 * SECOND));
    assert_eq!(get(999).await, Err(RequestError::TooLarge));
    for wrong in [Wrong::ShortBody, Wrong::LongBody, Wrong::BrokenBody, Wrong::StatusAfter(500)] {
        rig.store.plan(Op::Get, wrong, 1);
        assert_eq!(get(1_000).await.as_deref(), Ok(&*content(0..1_000)), "{wrong:?}");
    }
    let tail = rig.requests.get_tail(Class::Sync, &path, 64, rig.within(SECOND)).await;
    assert_eq!(tail, Ok((content(936..1_000).into(), 1_000)));
    let all = rig.requests.get_tail(Class::Sync, &path, 5_000, rig.within(SECOND)).await;
    assert_eq!(all, Ok((content(0..1_000).into(), 1_000)));
    assert_eq!(rig.requests.head(&path, rig.within(SECOND)).await.map(|meta| meta.size), Ok(1_000));
}

#[tokio::test(start_paused = true)]
async fn no_more_are_in_flight_than_allowed_and_throttling_halves_that() {
    let rig = Rig::new(|config| config.connections = 8);
    let path = rig.object("a", 100).await;
    rig.store.plan(Op::Get, Wrong::Late(SECOND / 10), 1_000);
    let reads = join_all((0..50).map(|_| rig.read(&path, 0..9, 60 * SECOND))).await;
    assert!(reads.iter().all(Result::is_ok));
    // A load that is late is sent twice, in a place of its own.
    assert!((7..=8).contains(&rig.store.peak()), "{}", rig.store.peak());
    let rig = Rig::new(|config| config.connections = 8);
    let path = rig.object("a", 100).await;
    rig.store.plan(Op::Get, Wrong::Status(503), 1);
    assert_eq!(rig.read(&path, 0..9, 60 * SECOND).await, Ok(content(0..9)));
    assert_eq!((rig.counters.concurrency.get(), rig.counters.throttled.get()), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn late_answers_are_overtaken_within_the_share() {
    let rig = Rig::new(|config| config.hedge_share = 0.1);
    let path = rig.object("a", 100).await;
    for _ in 0..400 {
        rig.store.plan(Op::Get, Wrong::Late(Duration::from_millis(1)), 9);
        rig.store.plan(Op::Get, Wrong::Late(SECOND), 1);
    }
    let mut slow = 0;
    for _ in 0..1_000 {
        let begun = rig.clock.now();
        assert_eq!(rig.read(&path, 0..9, 60 * SECOND).await, Ok(content(0..9)));
        slow += u32::from(rig.clock.now().since(begun) >= SECOND / 2);
    }
    let (hedges, won) = (rig.counters.hedges.get(), rig.counters.hedges_won.get());
    assert!(hedges <= 100 && won > 50, "{hedges} {won}");
    assert!(slow < 50, "{slow}");
    assert_eq!(rig.counters.gets.get(), 1_000 + hedges);
    assert_eq!(rig.counters.in_flight.get(), 0);
    let rig = Rig::new(|config| config.hedge_share = 0.0);
    let path = rig.object("a", 100).await;
    rig.store.plan(Op::Get, Wrong::Late(SECOND), 100);
    for _ in 0..100 {
        assert!(rig.read(&path, 0..9, 60 * SECOND).await.is_ok());
    }
    assert_eq!(rig.counters.hedges.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_conditional_put_knows_its_own_object_again() {
    let rig = Rig::new(|_| {});
    let path = Path::from("lease");
    let put = |bytes: Vec<u8>| rig.requests.put(Class::Sync, &path, bytes.into(), true, rig.within(60 * SECOND));
    rig.store.plan(Op::Put, Wrong::StatusAfter(500), 1);
    assert_eq!(put(content(0..100)).await, Ok(()), "the first attempt was done");
    assert_eq!(put(content(0..100)).await, Err(RequestError::Exists), "this one's first attempt was not");
    rig.store.plan(Op::Put, Wrong::Reset, 1);
    assert_eq!(put(content(1..101)).await, Err(RequestError::Exists), "another's, of the same length");
    rig.store.plan(Op::Put, Wrong::Reset, 1);
    assert_eq!(put(content(0..99)).await, Err(RequestError::Exists), "another's, longer");
    assert_eq!(rig.stored(&path).await, content(0..100));
    rig.store.plan(Op::Put, Wrong::Status(409), 1);
    assert_eq!(put(content(5..9)).await, Err(RequestError::Exists), "a conflict is asked once more");
    // Where the store cannot tell, a plain put is all there is.
    rig.requests.set_abilities(Abilities { conditional_create: false, ..Abilities::ALL });
    assert_eq!(put(content(5..9)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_put_that_is_answered_by_404_is_sent_again() {
    for wrong in [Wrong::Status(404), Wrong::StatusAfter(404)] {
        let rig = Rig::new(|_| {});
        let path = Path::from("segment");
        let put = |bytes: Vec<u8>| rig.requests.put(Class::Store, &path, bytes.into(), true, rig.within(60 * SECOND));
        rig.store.plan(Op::Put, wrong, 1);
        assert_eq!(put(content(0..100)).await, Ok(()), "{wrong:?}: at the second attempt, or done by the first");
        rig.store.plan(Op::Put, Wrong::Status(404), 1);
        assert_eq!(put(content(1..101)).await, Err(RequestError::Exists), "{wrong:?}: another's object stays");
        assert_eq!(rig.stored(&path).await, content(0..100));
        // A server that says nothing else: a failure, which names no object, after four times more.
        rig.store.plan(Op::Put, Wrong::Status(404), 100);
        let before = rig.counters.puts.get();
        assert!(matches!(put(content(0..9)).await, Err(RequestError::Failed(_))));
        assert_eq!(rig.counters.puts.get(), before + 5);
        assert_eq!(rig.counters.request_failures.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn parts_become_an_object_or_are_given_up() {
    let rig = Rig::new(|_| {});
    let path = Path::from("segment");
    let parts = || vec![PutPayload::from(content(0..50)), content(50..100).into(), content(100..120).into()];
    let put = || rig.requests.put_multipart(&path, parts(), rig.within(60 * SECOND));
    assert_eq!(put().await, Ok(()));
    assert_eq!(rig.stored(&path).await, content(0..120));
    assert_eq!((rig.counters.puts.get(), rig.counters.uploads_aborted.get()), (5, 0));
    // Any step that fails once: the upload is begun anew.
    for (op, given_up) in [(Op::Begin, 0), (Op::Part, 1), (Op::Complete, 1)] {
        rig.store.inner.delete(&path).await.expect("deleted");
        let before = rig.counters.uploads_aborted.get();
        rig.store.plan(op, Wrong::Status(500), 1);
        assert_eq!(put().await, Ok(()), "{op:?}");
        assert_eq!(rig.stored(&path).await, content(0..120));
        assert_eq!(rig.counters.uploads_aborted.get() - before, given_up, "{op:?}");
    }
    // Done, and the answer lost: not sent again.
    rig.store.inner.delete(&path).await.expect("deleted");
    let begun = rig.store.seen(Op::Begin).len();
    rig.store.plan(Op::Complete, Wrong::StatusAfter(500), 1);
    assert_eq!(put().await, Ok(()));
    assert_eq!(rig.store.seen(Op::Begin).len(), begun + 1);
    // Dropped in the middle: given up in the background.
    rig.store.plan(Op::Part, Wrong::Hang, 1);
    let aborts = rig.store.seen(Op::Abort).len();
    assert!(tokio::time::timeout(SECOND, put()).await.is_err());
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.store.seen(Op::Abort).len(), aborts + 1);
    assert_eq!(rig.counters.in_flight.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn budgets_of_requests_are_waited_for_and_of_bytes_are_not() {
    let rig = Rig::new(|config| {
        config.read_requests_per_second = 10;
        config.write_bytes_per_day = Some(100);
        config.read_bytes_per_day = Some(1_000);
        config.hedge_share = 0.0;
    });
    let path = rig.object("a", 100).await;
    let begun = rig.clock.now();
    let reads = join_all((0..5).map(|_| rig.read(&path, 0..100, 60 * SECOND))).await;
    assert!(reads.iter().all(Result::is_ok));
    assert!(rig.clock.now().since(begun) >= 4 * SECOND / 10);
    assert_eq!(
        rig.read(&path, 0..100, SECOND / 100).await,
        Err(RequestError::OverBudget),
        "its turn would come too late"
    );
    tokio::time::sleep(SECOND).await;
    // What did not come is given back.
    rig.store.plan(Op::Get, Wrong::Status(403), 20);
    for _ in 0..20 {
        assert!(rig.read(&path, 0..100, 60 * SECOND).await.is_err());
    }
    assert!(rig.requests.read_budget_left());
    for _ in 0..5 {
        assert!(rig.read(&path, 0..100, 60 * SECOND).await.is_ok());
    }
    assert!(!rig.requests.read_budget_left());
    assert_eq!(rig.read(&path, 0..1, 60 * SECOND).await, Err(RequestError::OverBudget));
    let put = || rig.requests.put(Class::Store, &path, content(0..60).into(), false, rig.within(60 * SECOND));
    assert_eq!((put().await, put().await), (Ok(()), Err(RequestError::OverBudget)));
    let over = rig.counters.over_budget.get();
    assert_eq!(over, 3);
    tokio::time::sleep(24 * 3600 * SECOND).await;
    assert!(rig.requests.read_budget_left() && rig.requests.write_budget_left());
    assert_eq!(put().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn listings_are_in_order_and_begin_behind_a_name() {
    for ignores_after in [false, true] {
        let rig = Rig::new(|_| {});
        rig.store.ignore(Ignores { after: ignores_after, ..Ignores::default() });
        for name in 0..20 {
            rig.object(&format!("log/{name:02}"), 1).await;
        }
        rig.object("other/00", 1).await;
        let (prefix, after) = (Path::from("log"), Path::from("log/04"));
        let list = async |limit| {
            let page = rig.requests.list(&prefix, Some(&after), limit, rig.within(60 * SECOND)).await;
            page.map(|page| page.into_iter().map(|meta| meta.location.to_string()).collect::<Vec<_>>())
        };
        let names = |range: Range<u32>| Ok(range.map(|name| format!("log/{name:02}")).collect::<Vec<_>>());
        assert_eq!(list(100).await, names(5..20));
        assert_eq!(list(3).await, names(5..8));
        assert_eq!(list(0).await, Ok(vec![]));
        // Broken in the middle: gone on with, nothing twice.
        rig.store.plan(Op::List, Wrong::BrokenBody, 3);
        assert_eq!(list(100).await, names(5..20));
        let dirs = rig.requests.list_dirs(&Path::default(), rig.within(SECOND)).await;
        assert_eq!(dirs, Ok(vec![Path::from("log"), Path::from("other")]));
    }
}

#[tokio::test]
async fn a_directory_is_listed_in_order_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Arc::new(LocalFileSystem::new_with_prefix(dir.path()).expect("a store"));
    let mut config = test_config();
    config.url = format!("file://{}", dir.path().display());
    let clock = TokioClock::new();
    let (shared, wall) = (Arc::new(clock.clone()), Arc::new(clock.clone()));
    let requests = Requests::new(store, &config, shared, wall, Arc::default(), 1);
    let deadline = clock.now().plus(60 * SECOND);
    for name in [7, 3, 9, 1, 5, 8, 2] {
        let path = Path::from(format!("log/{name}"));
        assert_eq!(requests.put(Class::Sync, &path, content(0..10).into(), true, deadline).await, Ok(()));
        assert_eq!(
            requests.put(Class::Sync, &path, content(0..10).into(), true, deadline).await,
            Err(RequestError::Exists)
        );
    }
    let page = requests.list(&Path::from("log"), Some(&Path::from("log/2")), 3, deadline).await.expect("listed");
    assert_eq!(page.iter().map(|meta| meta.location.as_ref()).collect::<Vec<_>>(), ["log/3", "log/5", "log/7"]);
    assert_eq!(requests.probe(&Path::default(), WriterId(1), deadline).await, Ok(Abilities::ALL));
    assert_eq!(requests.get_range(&Path::from("log/1"), 5..20, deadline).await.err(), Some(RequestError::Truncated));
    assert_eq!(requests.get_range(&Path::from("log/1"), 50..60, deadline).await.err(), Some(RequestError::Truncated));
}

#[tokio::test(start_paused = true)]
async fn deleting_is_told_for_each() {
    let rig = Rig::new(|_| {});
    let mut paths = Vec::new();
    for name in 0..1_500 {
        paths.push(rig.object(&format!("{name}"), 1).await);
    }
    paths.push(Path::from("was never there"));
    rig.store.plan(Op::Delete, Wrong::Status(503), 1);
    rig.store.plan(Op::Delete, Wrong::StatusAfter(500), 1);
    let outcomes = rig.requests.delete(paths.clone(), rig.within(60 * SECOND)).await;
    assert_eq!(outcomes.len(), 1_501);
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(rig.counters.deletes.get(), 4);
    rig.store.plan(Op::Delete, Wrong::StatusAfter(403), 1);
    let outcomes = rig.requests.delete(paths[..3].to_vec(), rig.within(60 * SECOND)).await;
    assert!(matches!(outcomes[..], [Err(RequestError::Denied(_)), Ok(()), Ok(())]), "{outcomes:?}");
    assert!(rig.requests.delete(Vec::new(), rig.within(SECOND)).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_probe_finds_what_a_store_ignores() {
    let root = Path::from("prefix/namespace");
    for create in [false, true] {
        for after in [false, true] {
            let rig = Rig::new(|_| {});
            rig.store.ignore(Ignores { create, after, ..Ignores::default() });
            let found = rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await;
            assert_eq!(found, Ok(Abilities { conditional_create: !create, list_after: !after }));
            let left = rig.requests.list(&root, None, 10, rig.within(SECOND)).await;
            assert!(left.is_ok_and(|left| left.is_empty()), "nothing is left");
        }
    }
    let rig = Rig::new(|_| {});
    rig.store.ignore(Ignores { ranges: true, ..Ignores::default() });
    let found = rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await;
    assert!(matches!(&found, Err(RequestError::Failed(text)) if text.contains("ranges")), "{found:?}");
    // A store that does not know the condition says so.
    let rig = Rig::new(|_| {});
    rig.store.ignore(Ignores { refuses_create: true, ..Ignores::default() });
    let found = rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await;
    assert_eq!(found, Ok(Abilities { conditional_create: false, list_after: true }));
    // One that is unwell for a while is not taken for it.
    let rig = Rig::new(|_| {});
    rig.store.plan(Op::Put, Wrong::Status(500), 5);
    assert_eq!(rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await, Ok(Abilities::ALL));
    // Nor one in which an earlier probe that could remove nothing left its objects.
    let rig = Rig::new(|_| {});
    rig.store.plan(Op::Delete, Wrong::Status(403), 1);
    assert!(rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await.is_err());
    assert_eq!(rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await, Ok(Abilities::ALL));
    // A lost answer is no missing ability.
    let rig = Rig::new(|_| {});
    rig.store.plan(Op::Put, Wrong::StatusAfter(500), 1);
    assert_eq!(rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await, Ok(Abilities::ALL));
    let rig = Rig::new(|_| {});
    rig.store.plan(Op::Put, Wrong::Status(403), 1);
    let found = rig.requests.probe(&root, WriterId(5), rig.within(60 * SECOND)).await;
    assert!(matches!(&found, Err(RequestError::Denied(text)) if text.starts_with("writing an object")), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_gives_its_place_back() {
    let rig = Rig::new(|config| config.connections = 1);
    let path = rig.object("a", 100).await;
    let body = rig.requests.get_range(&path, 0..90, rig.within(SECOND)).await.expect("opened");
    assert_eq!(body.object_bytes(), 100);
    let mut waiting = Box::pin(rig.requests.head(&path, rig.within(SECOND)));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(body);
    assert!(waiting.await.is_ok());
}
