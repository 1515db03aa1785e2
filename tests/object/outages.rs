//! Nodes, server and bucket that go away in the middle.

use terrace_test_s3::{Operation, Proxy};

use crate::bucket::{Bucket, log_puts, segment_gets, until};
use crate::node::{Node, Setup};
use crate::number;

/// Traffic until it is told to stop, with a seed.
const ENDLESS: &str = "--limit 1000000 --speed 6 --concurrency 4";
/// Traffic that a fresh node does quickly.
const SHORT: &str = "--seed 7 --limit 40 --concurrency 4";
/// What does not answer is given up soon, and tried again soon.
const IMPATIENT: &str =
    "[deadlines]\nlookup = \"2s\"\npromotion = \"2s\"\ncascade = \"4s\"\n[breaker]\ncooldown = \"500ms\"";
/// Requests that show that something goes on.
const SOME: u64 = 5;

fn impatient() -> Setup {
    Setup { tables: IMPATIENT, ..Setup::default() }
}

/// A node that is at work: it has stored, and has loaded what it stored.
fn at_work(setup: &Setup, bucket: &Bucket) -> Node {
    let node = setup.start(&bucket.proxy, &format!("{ENDLESS} --seed 7"));
    goes_on("before anything happens", &bucket.proxy);
    node
}

/// Waits until blocks are stored and loaded, from now on.
fn goes_on(when: &str, proxy: &Proxy) {
    let (puts, gets) = (log_puts(proxy).ok, segment_gets(proxy).ok);
    until(&format!("stores {when}"), || log_puts(proxy).ok >= puts + SOME);
    until(&format!("loads {when}"), || segment_gets(proxy).ok >= gets + SOME);
}

#[test]
fn a_node_that_is_killed_leaves_what_it_stored() {
    let bucket = Bucket::start();
    let setup = Setup::default();
    at_work(&setup, &bucket).kill();
    let fresh = setup.run(&bucket.proxy, SHORT);
    assert!(fresh.external_hits() > 0, "{:#}", fresh.report);
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_used_again() {
    let mut bucket = Bucket::start();
    let node = at_work(&impatient(), &bucket);
    bucket.server.kill().expect("killed");
    let failed = || bucket.proxy.counts().total().failed + bucket.proxy.counts().total().cut;
    let before = failed();
    until("requests that fail", || failed() >= before + SOME);
    bucket.server.restart().expect("a server");
    goes_on("after the restart", &bucket.proxy);
    let ended = node.stop();
    assert!(ended.external_hits() > 0, "{:#}", ended.report);
}

#[test]
fn a_bucket_that_is_emptied_fills_again() {
    let bucket = Bucket::start();
    let node = at_work(&impatient(), &bucket);
    let before = bucket.proxy.counts().of(Operation::Get).refused;
    assert!(bucket.empty() > 0, "there was nothing to delete");
    until("loads of what is gone", || bucket.proxy.counts().of(Operation::Get).refused > before);
    goes_on("after it was emptied", &bucket.proxy);
    let ended = node.stop();
    assert!(number(&ended.report, "/tiers/0/vanished") > 0, "{:#}", ended.report);
    // What is stored from now on others find, though the beginning of the log is gone.
    let traffic = "--seed 9 --limit 40 --concurrency 4";
    impatient().run(&bucket.proxy, traffic);
    let fresh = impatient().run(&bucket.proxy, traffic);
    assert!(fresh.external_hits() > 0, "{:#}", fresh.report);
}

#[test]
fn a_server_that_hangs_is_not_waited_for_and_is_used_again() {
    let bucket = Bucket::start();
    let lasting = at_work(&impatient(), &bucket);
    let proxy = bucket.another_way();
    let other = impatient().start(&proxy, &format!("{ENDLESS} --seed 8"));
    until("stores of another node", || log_puts(&proxy).ok >= SOME);
    bucket.proxy.hang(true);
    proxy.hang(true);
    let asked = || proxy.counts().under("/segments/").total().requests;
    let before = asked();
    until("requests that hang", || asked() > before);
    // All that this one has begun comes to its end while nothing answers.
    let ended = other.stop();
    let given_up = number(&ended.report, "/tiers/0/expired") + number(&ended.report, "/tiers/0/io_errors");
    assert!(given_up > 0, "{:#}", ended.report);
    bucket.proxy.hang(false);
    goes_on("after the hang", &bucket.proxy);
    let ended = lasting.stop();
    assert!(ended.external_hits() > 0, "{:#}", ended.report);
}

#[test]
fn wrong_credentials_are_told_and_cost_nothing_but_hits() {
    const SECRET: &str = "a-secret-that-nobody-may-see";
    let bucket = Bucket::start();
    let ended = Setup { secret_key: SECRET, ..impatient() }.run(&bucket.proxy, SHORT);
    assert_eq!(number(&ended.report, "/requests"), 40);
    assert_eq!(ended.external_hits(), 0, "{:#}", ended.report);
    assert!(bucket.proxy.counts().total().refused > 0, "{}", bucket.proxy.counts().to_json());
    let said = ended.log.lines().find(|line| line.contains("s3://terrace/shared"));
    let said = said.unwrap_or_else(|| panic!("the store is not named: {}", ended.log));
    assert!(said.contains("refused by the store") && said.contains("403"), "{said}");
    assert!(!ended.log.contains(SECRET), "{}", ended.log);
}
