//! The device suite, where there is no device.

use std::process::Command;

/// Everything but what needs multiprocessors: two processes too, each with a device of its own that the script plays.
#[test]
fn the_suite_passes_on_the_scripted_device() {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace-gpu-suite")).arg("--scripted").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("FAIL"), "{text}");
    for path in ["auto", "runs", "batch", "rects", "kernel"] {
        for case in ["a store between two kernels of the model", "flush at a preemption"] {
            assert!(text.contains(&format!("PASS {case}: path {path}\n")), "{text}");
        }
        assert!(text.contains(&format!("NO FIGURE (no GPU) path {path}, runs of 2 KiB, Both: ")), "{text}");
    }
    for case in [
        "two processes: a daemon copies a worker's memory both ways",
        "two processes: kill -9 of the worker in the middle of copies",
        "two processes: kill -9 of the daemon in the middle of copies",
        "out of memory: an engine goes on while the device is full, and after",
        "the slowdown of a matrix product is measured",
    ] {
        assert!(text.contains(&format!("PASS {case}\n")), "{case}: {text}");
    }
    assert!(text.contains("NOT RUN the matrix product that figures are taken beside is right"), "{text}");
    // Nothing that could be taken for a measurement.
    assert!(!text.lines().any(|line| line.starts_with("FIGURE") || line.starts_with("TARGET")), "{text}");
}

#[test]
fn without_a_gpu_the_suite_says_that_nothing_was_run() {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace-gpu-suite")).arg("--device=999").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert!(text.starts_with("NOT RUN: no case and no figure: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
