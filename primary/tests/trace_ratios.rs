//! Hit ratios of the policies on real traces equal the published ones.

mod common;

use common::{Trace, hit_percent, trace};
use terrace_config::Policy;

/// One cell of the table on the traces' page: share of the unique blocks in percent, policy, `store_threshold`, hits in percent.
type Cell = (u64, Policy, u32, f64);

fn check(name: &str, trace: &Trace, cells: &[Cell]) {
    let wrong: Vec<String> = cells
        .iter()
        .filter_map(|(share, policy, threshold, expected)| {
            let got = hit_percent(trace, *share, *policy, *threshold);
            let line =
                format!("{name} {share}% {policy:?} store_threshold {threshold}: {got:.2}, expected {expected:.2}");
            eprintln!("{line}");
            ((got - expected).abs() > 0.3).then_some(line)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn conversation() {
    let Some(trace) = trace("mooncake_conversation") else { return };
    assert_eq!((trace.requests.len(), trace.references, trace.unique), (12_031, 288_500, 182_790));
    check(
        "conversation",
        &trace,
        &[
            (1, Policy::Lru, 1, 5.25),
            (5, Policy::Lru, 1, 19.58),
            (10, Policy::Lru, 1, 27.89),
            (25, Policy::Lru, 1, 35.35),
            (1, Policy::Arc, 1, 6.49),
            (5, Policy::Arc, 1, 21.23),
            (10, Policy::Arc, 1, 28.41),
            (25, Policy::Arc, 1, 33.55),
            (1, Policy::Lru, 2, 8.53),
            (5, Policy::Lru, 2, 20.10),
            (10, Policy::Lru, 2, 21.24),
            (25, Policy::Lru, 2, 21.34),
        ],
    );
}

#[test]
fn synthetic() {
    let Some(trace) = trace("mooncake_synthetic") else { return };
    assert_eq!((trace.requests.len(), trace.references, trace.unique), (3_993, 121_877, 43_924));
    check(
        "synthetic",
        &trace,
        &[
            (1, Policy::Lru, 1, 3.81),
            (5, Policy::Lru, 1, 15.66),
            (10, Policy::Lru, 1, 26.23),
            (25, Policy::Lru, 1, 44.41),
            (1, Policy::Arc, 1, 4.20),
            (5, Policy::Arc, 1, 16.21),
            (10, Policy::Arc, 1, 26.51),
            (25, Policy::Arc, 1, 45.92),
        ],
    );
}

#[test]
fn coding_agents() {
    let Some(trace) = trace("weka_cc_dev_dense3h") else { return };
    assert_eq!((trace.requests.len(), trace.unique), (19_693, 1_326_606));
    check("weka", &trace, &[(2, Policy::Lru, 1, 48.29), (1, Policy::Arc, 1, 37.56)]);
}

/// All cells; some minutes.
#[test]
#[ignore = "takes minutes"]
fn coding_agents_in_full() {
    let Some(trace) = trace("weka_cc_dev_dense3h") else { return };
    check(
        "weka",
        &trace,
        &[
            (1, Policy::Lru, 1, 25.04),
            (2, Policy::Lru, 1, 48.29),
            (5, Policy::Lru, 1, 84.66),
            (10, Policy::Lru, 1, 93.74),
            (25, Policy::Lru, 1, 96.06),
            (1, Policy::Arc, 1, 37.56),
            (2, Policy::Arc, 1, 54.83),
            (5, Policy::Arc, 1, 83.74),
            (10, Policy::Arc, 1, 93.08),
            (25, Policy::Arc, 1, 95.97),
        ],
    );
}
