//! Answers that are wrong in every way, for a whole replay.

use terrace_test_s3::{Fault, Rule};

use crate::bucket::Bucket;
use crate::node::Setup;

/// One request after the other, each when the bucket has what the last one stored: hits do not depend on the machine's speed.
const TRAFFIC: &str = "--seed 7 --limit 150 --concurrency 1";
/// Many small requests.
const KEYS: &str = "linger = \"5ms\"\npublish_interval = \"20ms\"\nrange_bytes = \"64KiB\"";

#[test]
fn one_answer_in_a_hundred_is_faulty() {
    let bucket = Bucket::start();
    let sick = bucket.another_way();
    let rule = sick.add(Rule::any(Fault::all()).share(0.01).seed(7));
    let setup = Setup { tier: KEYS.to_owned(), primary_blocks: 200, ..Setup::default() };
    let well = Setup { prefix: "well", ..setup.clone() }.start(&bucket.proxy, TRAFFIC);
    let ill = Setup { prefix: "ill", ..setup }.start(&sick, TRAFFIC);
    let (well, ill) = (well.end(), ill.end());
    let context = format!(
        "{} faults in {}; without {:#}, with {:#}; {}",
        sick.applied(rule),
        sick.counts().to_json(),
        well.report,
        ill.report,
        ill.log
    );
    eprintln!(
        "{} faults in {} requests; misses {} and {}",
        sick.applied(rule),
        sick.counts().total().requests,
        well.misses(),
        ill.misses()
    );
    assert!(sick.applied(rule) > 0, "{context}");
    assert!(well.external_hits() > 0, "{context}");
    assert!(ill.external_hits() * 10 >= well.external_hits() * 9, "{context}");
    assert!(ill.misses() * 10 <= well.misses() * 11, "{context}");
}
