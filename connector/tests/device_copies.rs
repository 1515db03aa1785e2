//! The daemon copies between workers' GPU memory and slots. No GPU: the script plays it, over memory that processes share.

#[path = "common/daemon.rs"]
mod daemon;
#[path = "common/hands.rs"]
mod hands;

use std::sync::Arc;
use std::time::Duration;

use daemon::*;
use hands::*;
use terrace_connector::client::ClientError;
use terrace_connector::protocol::*;
use terrace_connector::server::ServerOptions;
use terrace_kernels::cuda::scripted::Scripted;

/// No path is measured; nothing is kept.
const COPY: &str = "[copy]\npath = \"runs\"\ncache_dir = \"DIR/kernels\"\n";
const WORKERS: &str = "terrace_device_workers";
const REFUSED: &str = "terrace_device_copies_total{outcome=\"refused\"";

/// The daemon, and the device that is to be empty when it is gone.
fn daemon_with(device: &Arc<Scripted>, more: &str) -> Daemon {
    Daemon::with(16, &format!("{COPY}{more}"), with_device(device))
}

fn boss(daemon: &Daemon, workers: u32) -> Client {
    let mut boss = Client::open(&daemon.socket(), &shaped(scheduler("e", workers)));
    boss.await_slots();
    boss
}

/// Everybody is gone: nothing is owed, nothing is open, no rule of the driver was broken.
fn nothing_is_left(daemon: Daemon, device: &Arc<Scripted>) {
    for name in [READERS, WRITING, WORKERS, "terrace_jobs", "terrace_engines", "terrace_requests"] {
        daemon.await_stat(name, 0.0);
    }
    daemon.handle.stop();
    daemon.handle.join();
    drop(daemon);
    assert_eq!(device.left(), [0; 5], "streams, events, registrations, pinned and device memory");
    assert_eq!(device.violations(), [""; 0]);
}

/// Prepares a store of chunks `0..3` of group 0 and `0..2` of group 1: its slots.
fn prepare(boss: &mut Client, job: u64, from: u32) -> Vec<u32> {
    let keys = [group_keys(0, from..from + 3), group_keys(1, from..from + 2)].concat();
    let plan = boss.prepare(job, job, keys);
    assert!(plan.room);
    numbers(&plan.slots)
}

/// Seven blocks of group 0, the first at place 2 of its chunk and one of them the null block, and four of group 1.
const STORED: [u32; 11] = [5, 6, 0, 20, 21, 22, 9, 11, 3, 2, 8];
const SIZES: [u32; 2] = [7, 4];
const FIRSTS: [u32; 2] = [2, 3];
/// Where they go when they are loaded.
const LOADED: [u32; 11] = [1, 2, 0, 3, 17, 4, 23, 7, 19, 10, 23];

fn store_job(name: u64, slots: &[u32]) -> CopyJob {
    job(name, &STORED, SIZES, FIRSTS, slots)
}

/// What a worker must find after the load of what was stored.
fn wrong_orders(seed: u64) -> [String; 2] {
    let pairs = |range: std::ops::Range<usize>| {
        let pairs = LOADED[range.clone()].iter().zip(&STORED[range]).filter(|(to, _)| **to != 0);
        pairs.map(|(to, from)| format!(" {to} {from}")).collect::<String>()
    };
    [format!("wrong {seed} 0{}", pairs(0..7)), format!("wrong {seed} 1{}", pairs(7..11))]
}

/// Leases the stored chunks, and waits until all are hits: the lease and their slots.
fn lease_all(boss: &mut Client, request: u64) -> (u64, Vec<u32>) {
    let mut found = None;
    until("all is readable", || {
        let query = |group, chunks| Query { scan: Scan::Each as u8, keys: group_keys(group, 0..chunks) };
        let message = Lookup { request, tiers: u32::MAX, lease: true, queries: vec![query(0, 3), query(1, 2)] };
        let reply: LookupReply = boss.ask(Kind::Lookup, &message).expect("an answer");
        if answers(&reply).iter().all(|answer| matches!(answer, Answer::Hit { .. })) {
            found = Some((reply.lease, numbers(&reply.slots)));
            return true;
        }
        let wait = LeaseEnd { lease: reply.lease, job: 0, load: Vec::new(), wait: numbers_to_bytes(0..5) };
        let leases = if reply.lease == 0 { Vec::new() } else { vec![wait] };
        boss.end_step(&EndStep { leases, ..EndStep::default() });
        false
    });
    found.expect("it was found")
}

fn begin_load(boss: &mut Client, lease: u64, job: u64) {
    let load = LeaseEnd { lease, job, load: numbers_to_bytes(0..5), wait: Vec::new() };
    boss.end_step(&EndStep { leases: vec![load], ..EndStep::default() });
}

fn await_outcome(boss: &mut Client, job: u64) -> bool {
    await_outcomes(boss, [job]) == [true]
}

fn await_outcomes<const N: usize>(boss: &mut Client, jobs: [u64; N]) -> [bool; N] {
    let mut ended = std::collections::BTreeMap::new();
    until("the jobs have ended", || {
        ended.extend(boss.end_step(&EndStep::default()).jobs.iter().map(|ended| (ended.job, ended.ok)));
        jobs.iter().all(|job| ended.contains_key(job))
    });
    jobs.map(|job| ended[&job])
}

#[test]
fn random_data_goes_from_process_to_process_and_through_a_tier() {
    obey_if_child();
    for seed in 0..2 {
        let device = device(seed);
        let daemon = daemon_with(
            &device,
            "[limits]\npromotion_share = 0.5\n[[tier]]\ntype = \"nvme\"\npaths = [\"DIR/t\"]\ncapacity = \"64MiB\"\n",
        );
        let socket = daemon.socket();
        let mut boss = boss(&daemon, 2);
        let test = "random_data_goes_from_process_to_process_and_through_a_tier";
        let mut hands = [0, 1].map(|rank| HandProcess::start(test, &socket, "e", rank));
        assert_eq!(daemon.stat(WORKERS), 2.0);
        hands.iter_mut().for_each(|hand| assert_eq!(hand.ask(&format!("fill {seed}")), "filled"));
        let slots = prepare(&mut boss, 1, 0);
        for hand in &mut hands {
            hand.copy(true, &store_job(1, &slots));
            // Six blocks of 256 bytes, four of 100: the null block is not copied.
            assert_eq!(hand.copied(1), (true, 6 * 256 + 4 * 100));
            assert_eq!(daemon.resident(), 0.0, "readable when all have reported");
            hand.complete(1, true);
        }
        assert!(await_outcome(&mut boss, 1));
        // Other processes take the ranks over: the data is in slots alone.
        drop(hands);
        daemon.await_stat(WORKERS, 0.0);
        daemon.await_stat("terrace_sessions", 1.0);
        let mut hands = [0, 1].map(|rank| HandProcess::start(test, &socket, "e", rank));
        // Once from the primary, once from the tier.
        for load in [2, 3] {
            let (lease, slots) = lease_all(&mut boss, load);
            hands.iter_mut().for_each(|hand| assert_eq!(hand.ask("poison"), "poisoned"));
            let pages = job(load, &LOADED, SIZES, FIRSTS, &slots);
            // One is early: the step that begins the load comes over another socket.
            hands[0].copy(false, &pages);
            daemon.await_stat("terrace_device_copies_early_total", (load - 1) as f64);
            begin_load(&mut boss, lease, load);
            hands[1].copy(false, &pages);
            for hand in &mut hands {
                assert_eq!(hand.copied(load), (true, 6 * 256 + 4 * 100));
                for order in wrong_orders(seed) {
                    assert_eq!(hand.ask(&order), "nothing", "{order}");
                }
                hand.complete(load, true);
            }
            assert!(await_outcome(&mut boss, load));
            until("all is stored below", || value(&boss.stats(), "terrace_tier_blocks{tier=\"nvme\"}") == 5.0);
            boss.raw.send::<()>(Kind::Reset, FrameFlags::REQUEST, None);
            boss.raw.receive().expect("a reply");
        }
        drop(hands);
        boss.bye();
        nothing_is_left(daemon, &device);
    }
}

#[test]
fn a_worker_killed_in_mid_copy_leaves_nothing_and_its_slots_wait_for_the_copy() {
    obey_if_child();
    let device = device(4);
    let daemon = daemon_with(&device, "");
    let socket = daemon.socket();
    let mut boss = boss(&daemon, 1);
    let test = "a_worker_killed_in_mid_copy_leaves_nothing_and_its_slots_wait_for_the_copy";
    let mut hand = HandProcess::start(test, &socket, "e", 0);
    hand.ask("fill 1");
    let slots = [prepare(&mut boss, 1, 0), prepare(&mut boss, 2, 10), prepare(&mut boss, 3, 20)];
    device.hold_all(true);
    // One is in flight, one is reported as done before it is, and one was never sent.
    hand.copy(true, &store_job(1, &slots[0]));
    hand.copy(true, &store_job(2, &slots[1]));
    hand.complete(2, true);
    // Each waits for the worker's event.
    until("both are with the device", || device.calls("cuStreamWaitEvent") == 2);
    until("the report is there", || daemon.stat("terrace_messages_total{kind=\"complete\"") == 1.0);
    hand.kill();
    daemon.await_stat("terrace_sessions", 1.0);
    assert_eq!((daemon.stat(WRITING), daemon.stat("terrace_jobs")), (10.0, 2.0), "only what nobody copies is free");
    assert_eq!(daemon.stat(WORKERS), 1.0);
    // The rank is not to be had before.
    let again = open(&socket, "e", 0);
    let retry = ErrorCode::Retry as u16;
    assert!(matches!(again, Err(ClientError::Refused { code, .. }) if code == retry), "{again:?}");
    assert!(boss.prepare(4, 4, group_keys(0, 30..32)).slots.is_empty(), "no worker, no store");
    device.hold_all(false);
    daemon.await_stat(WORKERS, 0.0);
    daemon.await_stat(WRITING, 0.0);
    assert_eq!(daemon.resident(), 0.0, "nothing of it is published");
    assert_eq!(device.left()[4], 0, "its memory is closed");
    assert!(!await_outcome(&mut boss, 1));
    // The daemon goes on.
    let mut hand = HandProcess::start(test, &socket, "e", 0);
    let slots = prepare(&mut boss, 1, 0);
    hand.copy(true, &store_job(1, &slots));
    assert!(hand.copied(1).0);
    hand.complete(1, true);
    assert!(await_outcome(&mut boss, 1));
    drop(hand);
    boss.bye();
    nothing_is_left(daemon, &device);
}

/// Set in a child that is the daemon: where its files are.
const DAEMON: &str = "TERRACE_TEST_DAEMON";

#[test]
fn a_daemon_killed_in_mid_copy_leaves_its_worker_alive() {
    if let Some(dir) = std::env::var_os(DAEMON) {
        let device = device(1);
        let config = config(16, COPY, std::path::Path::new(&dir));
        let _handle = terrace_connector::server::Server::start(&config, with_device(&device)).expect("it starts");
        device.hold_all(true);
        println!("\n> ready");
        std::thread::sleep(PATIENCE);
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "a_daemon_killed_in_mid_copy_leaves_its_worker_alive", "--nocapture", "--test-threads=1"])
        .env(DAEMON, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a child");
    let socket = dir.path().join("s");
    until("it listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let mut boss = Client::open(&socket, &shaped(scheduler("e", 1)));
    boss.await_slots();
    let own = device(2);
    let mut hand = Hand::attached(&own, &socket, "e", 0);
    hand.fill(1);
    let slots = prepare(&mut boss, 1, 0);
    hand.copy(true, vec![store_job(1, &slots)]);
    assert_eq!(hand.worker().copied(Duration::from_millis(50)).expect("it lives").len(), 0, "copies are held back");
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    assert!(hand.worker().copied(PATIENCE).is_err(), "the end is told");
    assert!(boss.raw.ends());
    let all: Vec<(u32, u32)> = (0..BLOCKS).map(|block| (block, block)).collect();
    assert_eq!((hand.wrong(1, 0, &all), hand.wrong(1, 1, &all)), (None, None), "its memory is its own");
    drop(hand.worker.take());
    drop(hand);
    assert_eq!((own.left(), own.violations()), ([0; 5], Vec::new()));
}

#[test]
fn slots_are_given_back_when_report_and_copy_are_both_there() {
    let device = device(2);
    let daemon = daemon_with(&device, "");
    let mut boss = boss(&daemon, 1);
    let mut hand = Hand::attached(&device, &daemon.socket(), "e", 0);
    hand.fill(1);
    let slots: Vec<_> = (1..=3).map(|name| prepare(&mut boss, name, 10 * name as u32)).collect();
    device.hold_all(true);
    for (name, slots) in (1..).zip(&slots) {
        hand.copy(true, vec![store_job(name, slots)]);
    }
    until("they run", || device.calls("cuMemcpyAsync") > 0);
    // Given up by the worker, given up by the scheduler, reported too early: none frees what is still written to.
    hand.worker().complete(&[(1, false), (3, true)]).expect("it is sent");
    until("the reports are there", || daemon.stat("terrace_messages_total{kind=\"complete\"") == 1.0);
    let completed = vec![CompletedJob { job: 2, ok: false }];
    boss.end_step(&EndStep { completed, ..EndStep::default() });
    assert_eq!((daemon.stat(WRITING), daemon.stat("terrace_jobs")), (15.0, 3.0));
    let taken: Vec<u32> = slots.concat();
    let more = boss.prepare(9, 9, group_keys(0, 90..91));
    assert!(numbers(&more.slots).iter().all(|slot| !taken.contains(slot)), "no slot under a copy is handed out");
    device.hold_all(false);
    for name in 1..=3 {
        assert!(hand.copied(name).ok);
    }
    assert_eq!(await_outcomes(&mut boss, [1, 2, 3]), [false, false, true]);
    assert_eq!((daemon.stat(WRITING), daemon.resident()), (1.0, 5.0), "job 9 and what job 3 stored");
    hand.worker().complete(&[(9, false)]).expect("it is sent");
    hand.worker.take();
    boss.bye();
    daemon.await_stat(WORKERS, 0.0);
    drop(hand);
    nothing_is_left(daemon, &device);
}

#[test]
fn what_cannot_be_copied_is_refused_and_nobody_else_notices() {
    let device = device(6);
    let daemon = daemon_with(&device, "");
    let socket = daemon.socket();
    let mut witness = Client::open(&socket, &shaped(scheduler("witness", 0)));
    witness.await_slots();
    witness.store(1, 77, 0..2);
    let theirs = numbers(&witness.lookup(2, Scan::Each, keys(0..1)).slots)[0];
    assert!(witness.prepare(3, 78, keys(50..51)).room, "a job of another engine");
    let mut boss = boss(&daemon, 2);
    let mut hand = Hand::attached(&device, &socket, "e", 0);
    let mut other = Hand::attached(&device, &socket, "e", 1);
    hand.fill(1);
    other.fill(1);
    let mut slots = prepare(&mut boss, 1, 10);
    let good = store_job(1, &slots);
    let far = BLOCKS + 1;
    let (mut beyond, mut foreign, mut twice) = (slots.clone(), slots.clone(), slots.clone());
    (beyond[0], foreign[0], twice[0]) = (16, theirs, slots[1]);
    let blocks = |at: usize, block: u32| {
        let mut blocks = STORED;
        blocks[at] = block;
        job(1, &blocks, SIZES, FIRSTS, &slots)
    };
    let mut bad = vec![
        store_job(78, &slots),
        store_job(0, &slots),
        store_job(1, &beyond),
        store_job(1, &foreign),
        store_job(1, &twice),
        store_job(1, &slots[1..]),
        job(1, &STORED, [7, 5], FIRSTS, &slots),
        job(1, &STORED, [u32::MAX, u32::MAX], FIRSTS, &slots),
        job(1, &STORED, SIZES, [0, 0], &[]),
        blocks(0, far),
        blocks(10, u32::MAX),
    ];
    bad.push(CopyJob { sizes: numbers_to_bytes([11]), ..good.clone() });
    bad.push(CopyJob { firsts: Vec::new(), ..good.clone() });
    for bad in bad {
        let name = bad.job;
        hand.copy(true, vec![bad.clone()]);
        let copied = hand.copied(name);
        assert_eq!((copied.ok, copied.bytes), (false, 0), "{bad:?}");
    }
    // The other way, and a job twice at a time: one of them is copied.
    hand.copy(false, vec![good.clone()]);
    assert!(!hand.copied(1).ok);
    hand.copy(true, vec![good.clone(), good.clone()]);
    let mut copied = Vec::new();
    until("both are told", || {
        copied.extend(hand.worker().copied(Duration::from_millis(50)).expect("an answer"));
        copied.len() == 2
    });
    assert_eq!(copied.iter().filter(|copied| copied.ok).count(), 1);
    // What was refused once is not published, whatever is said of it. The other rank's good copy changes nothing.
    other.copy(true, vec![good]);
    assert!(other.copied(1).ok);
    hand.worker().complete(&[(1, true)]).expect("it is sent");
    other.worker().complete(&[(1, true)]).expect("it is sent");
    assert!(!await_outcome(&mut boss, 1));
    // It has reported it.
    slots = prepare(&mut boss, 2, 20);
    hand.worker().complete(&[(2, true)]).expect("it is sent");
    hand.copy(true, vec![store_job(2, &slots)]);
    assert!(!hand.copied(2).ok);
    other.worker().complete(&[(2, false)]).expect("it is sent");
    assert!(daemon.stat(REFUSED) >= 8.0);
    assert_eq!(witness.answers(0..2), [hit(); 2]);
    assert_eq!(witness.read(theirs), block(0), "the slot of another engine is as it was");
    hand.worker.take();
    other.worker.take();
    boss.bye();
    witness.bye();
    daemon.await_stat(WORKERS, 0.0);
    drop((hand, other));
    nothing_is_left(daemon, &device);
}

/// An `Attach` that can be opened, made by hand.
fn attach_of(hand: &Hand) -> Attach {
    let events = [0, 1].map(|_| {
        let kind = terrace_kernels::cuda::EventKind::Shared;
        let event = terrace_kernels::cuda::DeviceEvent::new(&hand.driver, kind).expect("an event");
        let bytes = event.export().expect("it is exported").to_vec();
        // The test's process ends before anybody asks for it back.
        std::mem::forget(event);
        bytes
    });
    let exported = terrace_kernels::cuda::export_memory(&*hand.driver, hand.memory.groups[0][0].base).expect("memory");
    let [store_ready, load_ready] = events;
    Attach {
        device: hand.driver.facts().uuid.to_vec(),
        memories: vec![Memory {
            handle: exported.handle.to_vec(),
            offset: 0,
            allocation_bytes: exported.allocation_bytes,
        }],
        groups: vec![vec![Page { memory: 0, offset: 0, num_blocks: BLOCKS, page_bytes: 96, page_stride: 192 }]],
        part_offset: 0,
        part_bytes: 96 * PER_CHUNK,
        null_block: None,
        store_ready,
        load_ready,
    }
}

#[test]
fn memory_that_cannot_be_opened_is_refused_and_the_session_goes_on() {
    let device = device(2);
    let daemon = daemon_with(&device, "");
    let socket = daemon.socket();
    let _boss = boss(&daemon, 1);
    let hand = Hand::new(&device, 0);
    let good = attach_of(&hand);
    let page = good.groups[0][0];
    let with_page = |page: Page| Attach { groups: vec![vec![page]], ..good.clone() };
    let memory = |memory: Memory| Attach { memories: vec![memory], ..good.clone() };
    let bad = [
        Attach { device: vec![7; 16], ..good.clone() },
        Attach { device: vec![7; 15], ..good.clone() },
        Attach { device: vec![], ..good.clone() },
        Attach { part_offset: BLOCK_BYTES, ..good.clone() },
        Attach { part_offset: u32::MAX, part_bytes: u32::MAX, ..good.clone() },
        Attach { part_bytes: 96 * PER_CHUNK - 1, ..good.clone() },
        Attach { store_ready: vec![7; 64], ..good.clone() },
        Attach { load_ready: vec![7; 63], ..good.clone() },
        Attach { groups: vec![Vec::new()], ..good.clone() },
        memory(Memory { handle: vec![7; 64], ..good.memories[0].clone() }),
        memory(Memory { handle: vec![7; 65], ..good.memories[0].clone() }),
        memory(Memory { offset: u64::MAX, ..good.memories[0].clone() }),
        memory(Memory { offset: 1 << 20, ..good.memories[0].clone() }),
        memory(Memory { allocation_bytes: u64::MAX, offset: 1, handle: good.load_ready.clone() }),
        with_page(Page { memory: 1, ..page }),
        with_page(Page { num_blocks: 0, ..page }),
        with_page(Page { num_blocks: u32::MAX, ..page }),
        with_page(Page { page_bytes: 0, ..page }),
        with_page(Page { page_stride: 95, ..page }),
        with_page(Page { page_stride: u64::MAX, ..page }),
        with_page(Page { offset: u64::MAX, ..page }),
        with_page(Page { offset: (192 + 128) * u64::from(BLOCKS), ..page }),
        // A source that panics.
        Attach { device: vec![0xff; 16], ..good.clone() },
    ];
    let opened = |client: &mut Client, attach: &Attach| client.ask::<_, AttachReply>(Kind::Attach, attach);
    let join = || {
        let mut joined = None;
        until("the rank is free", || {
            joined = Client::try_open(&socket, &with_feature(shaped(worker("e", 0)))).ok();
            joined.is_some()
        });
        joined.expect("it was opened")
    };
    for bad in &bad {
        let mut client = join();
        assert_eq!(client.reply.features, [DEVICE_COPIES]);
        let panics = bad.device == [0xff; 16];
        let wanted = if panics { ErrorCode::Internal } else { ErrorCode::Invalid };
        assert_eq!(opened(&mut client, bad).expect_err("it is refused"), wanted, "{bad:?}");
        client.ping();
        assert_eq!(opened(&mut client, &good).expect_err("once in a session"), ErrorCode::Invalid);
        client.raw.send(Kind::Copy, FrameFlags::ONE_WAY, Some(&Copy::default()));
        assert_eq!(client.raw.refusal(), ErrorCode::Role);
        client.bye();
    }
    // Too much of it.
    let many = [
        Attach { memories: vec![good.memories[0].clone(); MAX_MEMORIES + 1], ..good.clone() },
        Attach { groups: vec![vec![page; MAX_PAGES], vec![page]], ..good.clone() },
    ];
    let mut client = join();
    for many in &many {
        assert_eq!(opened(&mut client, many).expect_err("it is refused"), ErrorCode::Limit);
    }
    assert_eq!(daemon.refused("attach"), 2.0);
    // Before it, without it, after it.
    client.raw.send(Kind::Copy, FrameFlags::ONE_WAY, Some(&Copy::default()));
    assert_eq!(client.raw.refusal(), ErrorCode::Role);
    opened(&mut client, &good).expect("it can still be opened");
    assert_eq!(opened(&mut client, &good).expect_err("once in a session"), ErrorCode::Invalid);
    client.bye();
    daemon.await_stat(WORKERS, 0.0);
    let mut plain = Client::open(&socket, &shaped(worker("e", 0)));
    assert_eq!(plain.reply.features, [""; 0]);
    assert_eq!(opened(&mut plain, &good).expect_err("not asked for"), ErrorCode::Role);
    plain.bye();
    assert_eq!(daemon.stat("terrace_device_attaches_total{outcome=\"failed\""), bad.len() as f64 - 1.0);
    daemon.await_stat(WORKERS, 0.0);
    assert_eq!(device.violations(), [""; 0]);
    drop(hand);
}

#[test]
fn a_flood_is_bounded_and_told() {
    let device = device(2);
    let daemon = Daemon::with(16, &format!("jobs_per_session = 8\n{COPY}"), with_device(&device));
    let mut boss = boss(&daemon, 1);
    let mut hand = Hand::attached(&device, &daemon.socket(), "e", 0);
    // Loads that nobody begins: kept, as many as jobs may be.
    for name in 1..=20 {
        hand.copy(false, vec![job(name, &[], [0, 0], [0, 0], &[])]);
    }
    for name in 9..=20 {
        assert!(!hand.copied(name).ok);
    }
    assert_eq!((daemon.refused("copies"), daemon.stat("terrace_device_copies_early_total")), (12.0, 8.0));
    assert_eq!(boss.end_step(&EndStep::default()).workers, 1);
    hand.copy(false, (1..=9).map(|name| job(name, &[], [0, 0], [0, 0], &[])).collect());
    let refused = hand.worker().copied(PATIENCE);
    assert!(matches!(refused, Err(ClientError::Copies { code, .. }) if code == ErrorCode::Limit as u16));
    hand.worker.take();
    boss.bye();
    daemon.await_stat(WORKERS, 0.0);
    drop(hand);
    nothing_is_left(daemon, &device);
}

#[test]
fn a_lost_device_fails_its_jobs_and_the_session_lives() {
    let device = device(2);
    let daemon = daemon_with(&device, "");
    let mut boss = boss(&daemon, 1);
    let mut hand = Hand::attached(&device, &daemon.socket(), "e", 0);
    let slots = [prepare(&mut boss, 1, 0), prepare(&mut boss, 2, 10)];
    device.hold_all(true);
    hand.copy(true, vec![store_job(1, &slots[0])]);
    until("it runs", || device.calls("cuMemcpyAsync") > 0);
    device.lose();
    assert!(!hand.copied(1).ok);
    daemon.await_stat("terrace_devices_lost_total", 1.0);
    // The worker cannot record its event any more: it asks all the same.
    let mut raw = hand.worker.take();
    let worker = raw.as_mut().expect("a session");
    worker.complete(&[(1, true), (2, false)]).expect("it is sent");
    assert_eq!(await_outcomes(&mut boss, [1, 2]), [false, false]);
    assert_eq!((daemon.stat(WRITING), daemon.resident()), (0.0, 0.0));
    assert_eq!(boss.end_step(&EndStep::default()).workers, 1, "the session lives");
    drop(raw);
    boss.bye();
    for name in [WORKERS, WRITING, "terrace_jobs", "terrace_engines"] {
        daemon.await_stat(name, 0.0);
    }
    drop(hand);
}

#[test]
fn a_daemon_that_ends_waits_for_copies_as_long_as_it_may() {
    for goes_on in [true, false] {
        let device = device(2);
        let daemon = daemon_with(&device, "");
        let mut boss = boss(&daemon, 1);
        let mut hand = Hand::attached(&device, &daemon.socket(), "e", 0);
        let slots = prepare(&mut boss, 1, 0);
        device.hold_all(true);
        hand.copy(true, vec![store_job(1, &slots)]);
        until("it runs", || device.calls("cuMemcpyAsync") > 0);
        daemon.handle.drain(if goes_on { PATIENCE } else { Duration::from_millis(50) });
        if goes_on {
            device.hold_all(false);
            assert!(hand.copied(1).ok, "what runs ends");
            hand.worker().complete(&[(1, true)]).expect("it is sent");
        }
        daemon.handle.join();
        assert!(daemon.handle.is_over());
        device.hold_all(false);
        // A thread that was left behind gives everything back by itself.
        drop(hand.worker.take());
        drop(daemon);
        let others = || [device.left()[0], device.left()[2], device.left()[3]];
        until("all is given back", || others() == [1, 0, 0]);
        drop(hand);
        assert_eq!(device.violations(), [""; 0]);
    }
}

#[test]
fn the_feature_is_offered_where_there_is_a_device() {
    let device = device(1);
    for (engine, is_offered) in [("auto", true), ("cuda", true), ("host", false)] {
        let text = format!("[copy]\nengine = \"{engine}\"\n");
        let daemon = Daemon::with(16, &text, with_device(&device));
        let client = Client::open(&daemon.socket(), &with_feature(shaped(worker("e", 0))));
        assert_eq!(client.reply.features.len(), usize::from(is_offered), "{engine}");
        let answer = open(&daemon.socket(), "e", 1).err();
        assert_eq!(matches!(answer, Some(ClientError::Unfit(_))), !is_offered, "{answer:?}");
    }
    if terrace_kernels::cuda::Cuda::load().is_ok() {
        println!("NOT RUN: a CUDA driver is here");
        return;
    }
    let daemon = Daemon::new(16, "");
    let client = Client::open(&daemon.socket(), &with_feature(shaped(worker("e", 0))));
    assert_eq!(client.reply.features, [""; 0]);
    let dir = tempfile::tempdir().expect("a directory");
    let asked = config(16, "[copy]\nengine = \"cuda\"\n", dir.path());
    let error = terrace_connector::server::Server::start(&asked, ServerOptions::default()).expect_err("there is none");
    assert!(error.is_bad_input());
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    assert!(!dir.path().join("s").exists(), "nobody connects to a daemon that cannot serve");
}
