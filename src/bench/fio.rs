//! fio as the measure of a disk: io_uring, O_DIRECT, one job.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// What fio does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    /// Writes this file, which does not exist.
    Fresh(&'a Path),
    /// Writes this file again, in place.
    Overwrite(&'a Path),
    /// Reads this one file at random places.
    ReadOne(&'a Path),
    /// Reads every file below this folder, in random order.
    ReadMany(&'a Path),
}

/// Runs fio over `bytes` in blocks of `block_bytes` at `depth`; bytes a second.
pub(super) fn rate(work: Work<'_>, block_bytes: u32, depth: u32, bytes: u64) -> anyhow::Result<f64> {
    let mut fio = Command::new("fio");
    fio.args(["--name=limit", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--thread=1"]);
    fio.args(["--output-format=json", "--fallocate=none", "--randrepeat=0"]);
    fio.arg(format!("--bs={block_bytes}")).arg(format!("--iodepth={depth}"));
    let (direction, path) = match work {
        Work::Fresh(path) => {
            fio.args(["--rw=write", "--create_on_open=1"]).arg(format!("--size={bytes}"));
            ("write", fio.arg(file(path)))
        }
        Work::Overwrite(path) => {
            fio.args(["--rw=randwrite", "--overwrite=1"]).arg(format!("--size={bytes}"));
            ("write", fio.arg(file(path)))
        }
        Work::ReadOne(path) => {
            fio.arg("--rw=randread").arg(format!("--size={bytes}"));
            ("read", fio.arg(file(path)))
        }
        Work::ReadMany(folder) => {
            fio.args(["--rw=read", "--openfiles=64", "--file_service_type=random:1"]);
            ("read", fio.arg(format!("--opendir={}", folder.display())))
        }
    };
    let output = path.output().context("fio does not run: install it (Debian: apt-get install fio)")?;
    anyhow::ensure!(
        output.status.success(),
        "fio failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    // fio may say a line or two before its JSON.
    let start = output.stdout.iter().position(|byte| *byte == b'{').context("fio printed no JSON")?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout[start..]).context("fio's JSON")?;
    let rate = report["jobs"][0][direction]["bw_bytes"].as_f64().context("fio's JSON names no rate")?;
    anyhow::ensure!(rate > 0.0, "fio moved no bytes");
    Ok(rate)
}

fn file(path: &Path) -> String {
    format!("--filename={}", path.display())
}
