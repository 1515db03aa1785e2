//! Hit ratios of public traces, in the setting in which their tables were made: requests one at a time, no GPU cache,
//! nothing moved. Within 0.3 points, in every cell that is run.
//!
//! The traces are not part of the repository: `$TERRACE_SHARED/traces`, else `../shared/traces`. The long ones:
//! `cargo test --release --test traces -- --ignored`.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::not_run;

/// Percentage points that a ratio may be off.
const TOLERANCE: f64 = 0.3;

/// One line of a table: policy, and for each size of the primary the hits in percent of references.
type Line<'a> = (&'a str, &'a [(u32, f64)]);

/// The trace's path; `None`, said loudly, where it is not there.
fn trace(test: &str, name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("TERRACE_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let path = shared.join("traces").join(name).with_extension("jsonl.zst");
    if path.exists() {
        return Some(path);
    }
    not_run(test, &format!("{} is not there; set TERRACE_SHARED", path.display()));
    None
}

/// A replay in the tables' setting.
fn study(trace: &PathBuf, policy: &str, primary_blocks: u32, nvme_blocks: u32) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["replay", "--json", "--no-bytes", "--gpu-prefix-cache", "off", "--concurrency", "1"])
        .args(["--policy", policy, "--trace"])
        .arg(trace)
        .args(["--primary-blocks", &primary_blocks.to_string(), "--nvme-blocks", &nvme_blocks.to_string()])
        .output()
        .expect("terrace starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a JSON object on stdout")
}

fn percent(report: &serde_json::Value, tier: &str) -> f64 {
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    100.0 * number(&report["hits"][tier]) / number(&report["blocks_looked_up"])
}

fn one_tier(trace: &PathBuf, lines: &[Line]) {
    let mut off = Vec::new();
    for (policy, cells) in lines {
        for (blocks, expected) in *cells {
            let report = study(trace, policy, *blocks, 0);
            let measured = percent(&report, "primary");
            println!("{policy} {blocks}: {measured:.2} ({expected:.2}), {} s", report["wall_s"]);
            if (measured - expected).abs() > TOLERANCE {
                off.push(format!("{policy}, {blocks} blocks: {measured:.2} % where the table has {expected:.2}"));
            }
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}

fn two_tiers(trace: &PathBuf, primary_blocks: u32, nvme_blocks: u32, primary: f64, nvme: f64) {
    let report = study(trace, "lru", primary_blocks, nvme_blocks);
    let measured = (percent(&report, "primary"), percent(&report, "nvme"));
    println!("{measured:.2?} ({primary:.2}, {nvme:.2}), {} s", report["wall_s"]);
    assert!((measured.0 - primary).abs() <= TOLERANCE, "primary: {:.2} % where the table has {primary}", measured.0);
    assert!((measured.1 - nvme).abs() <= TOLERANCE, "nvme: {:.2} % where the table has {nvme}", measured.1);
}

#[test]
fn conversation() {
    let Some(trace) = trace("conversation", "mooncake_conversation") else { return };
    one_tier(
        &trace,
        &[
            ("lru", &[(1_828, 5.25), (9_140, 19.58), (18_279, 27.89), (45_698, 35.35)]),
            ("arc", &[(1_828, 6.49), (9_140, 21.23), (18_279, 28.41), (45_698, 33.55)]),
        ],
    );
}

#[test]
fn synthetic() {
    let Some(trace) = trace("synthetic", "mooncake_synthetic") else { return };
    one_tier(
        &trace,
        &[
            ("lru", &[(439, 3.81), (2_196, 15.66), (4_392, 26.23), (10_981, 44.41)]),
            ("arc", &[(439, 4.20), (2_196, 16.21), (4_392, 26.51), (10_981, 45.92)]),
        ],
    );
}

#[test]
fn agents() {
    let Some(trace) = trace("agents", "weka_cc_dev_dense3h") else { return };
    one_tier(&trace, &[("lru", &[(66_330, 84.66)])]);
}

#[test]
#[ignore = "takes minutes"]
fn agents_in_every_cell() {
    let Some(trace) = trace("agents_in_every_cell", "weka_cc_dev_dense3h") else { return };
    one_tier(
        &trace,
        &[
            ("lru", &[(13_266, 25.04), (26_532, 48.29), (132_661, 93.74), (331_652, 96.06)]),
            ("arc", &[(13_266, 37.56), (26_532, 54.83), (66_330, 83.74), (132_661, 93.08), (331_652, 95.97)]),
        ],
    );
}

#[test]
fn conversation_on_two_tiers() {
    let Some(trace) = trace("conversation_on_two_tiers", "mooncake_conversation") else { return };
    two_tiers(&trace, 1_828, 45_698, 5.25, 30.10);
}

#[test]
fn synthetic_on_two_tiers() {
    let Some(trace) = trace("synthetic_on_two_tiers", "mooncake_synthetic") else { return };
    two_tiers(&trace, 439, 10_981, 3.81, 40.60);
}

#[test]
fn agents_on_two_tiers() {
    let Some(trace) = trace("agents_on_two_tiers", "weka_cc_dev_dense3h") else { return };
    two_tiers(&trace, 13_266, 331_652, 25.04, 71.02);
}
