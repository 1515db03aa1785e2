//! The device suite, where there is no device.

use std::process::Command;

#[test]
fn the_suite_passes_on_the_scripted_device() {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace-gpu-suite")).arg("--scripted").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("FAIL"), "{text}");
    for path in ["auto", "runs", "batch", "rects", "kernel"] {
        assert!(text.contains(&format!("PASS a store between two kernels of the model: path {path}")), "{text}");
    }
    assert!(text.contains("NOT RUN figures"), "{text}");
}

#[test]
fn without_a_gpu_the_suite_says_that_nothing_was_run() {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace-gpu-suite")).arg("--device=999").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert!(text.starts_with("NOT RUN: no case and no figure: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
