//! The header as a C compiler takes it: a program in C, built with all warnings as errors and linked against the library, drives the host
//! engine for real, and says how the header's structs lie.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_copy::abi::*;

/// Builds the program. It is linked against the library that cargo built for this test.
fn program(place: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = std::env::current_exe().expect("this test").parent().expect("its directory").to_owned();
    assert!(library.join("libterrace_copy.so").is_file(), "no library in {}", library.display());
    let program = place.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(here.join("include"));
    cc.args(["main.c", "layout.c", "host.c"].map(|file| here.join("tests/c").join(file)));
    cc.arg("-L").arg(&library).arg("-lterrace_copy").arg(format!("-Wl,-rpath,{}", library.display()));
    let built = cc.arg("-o").arg(&program).output().expect("cc is there: rustc links with it");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn run(arguments: &[&str]) -> String {
    let place = tempfile::tempdir().expect("a place");
    let output = Command::new(program(place.path())).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_program_in_c_drives_the_host_engine() {
    assert_eq!(run(&[]), "driven\n");
}

macro_rules! layout {
    ($text:ident, $type:ident = $name:literal: $($field:ident),*) => {
        writeln!($text, "{} {}", $name, size_of::<$type>()).expect("a string");
        $(writeln!($text, "{}.{} {}", $name, stringify!($field), offset_of!($type, $field)).expect("a string");)*
    };
}

#[test]
fn the_header_is_what_the_library_has() {
    let mut text = String::new();
    layout!(text, Options = "terrace_copy_options":
        size, kind, path, flags, device, nvrtc, cache_dir, piece_bytes, kernel_blocks, queue_entries, host_threads, register_threads);
    layout!(text, RegionState = "terrace_copy_region_state": bytes, pieces, registered, refused, is_over);
    layout!(text, Pages = "terrace_copy_pages": base, page_bytes, page_stride, num_blocks, reserved);
    layout!(text, Slots = "terrace_copy_slots": base, stride, slots, reserved);
    layout!(text, Job = "terrace_copy_job":
        id, block_ids, group_sizes, block_indices, slots, n_block_ids, n_groups, n_slots, reserved);
    layout!(text, Points = "terrace_copy_order": after_kind, before_kind, after, before);
    layout!(text, Ended = "terrace_copy_ended": id, bytes, micros, code, reserved);
    for (name, value) in [
        ("ABI", ABI as i32),
        ("OK", code::OK),
        ("INVALID", code::INVALID),
        ("HANDLE", code::HANDLE),
        ("UNSUPPORTED", code::UNSUPPORTED),
        ("MISSING_LIBRARY", code::MISSING_LIBRARY),
        ("OUT_OF_MEMORY", code::OUT_OF_MEMORY),
        ("FULL", code::FULL),
        ("TIMEOUT", code::TIMEOUT),
        ("DEVICE_LOST", code::DEVICE_LOST),
        ("FAILED", code::FAILED),
        ("INTERNAL", code::INTERNAL),
        ("AUTO", AUTO as i32),
        ("HOST", HOST as i32),
        ("CUDA", CUDA as i32),
        ("PATH_AUTO", PATH_AUTO as i32),
        ("PATH_BATCH", PATH_BATCH as i32),
        ("PATH_RUNS", PATH_RUNS as i32),
        ("PATH_RECTS", PATH_RECTS as i32),
        ("PATH_KERNEL", PATH_KERNEL as i32),
        ("NO_COPIES", NO_COPIES as i32),
        ("STORE", STORE as i32),
        ("LOAD", LOAD as i32),
        ("NO_POINT", NO_POINT as i32),
        ("STREAM", STREAM as i32),
        ("EVENT", EVENT as i32),
        ("HANDLE_BYTES", terrace_kernels::cuda::IPC_HANDLE_BYTES as i32),
    ] {
        writeln!(text, "TERRACE_COPY_{name} {value}").expect("a string");
    }
    assert_eq!(run(&["layout"]), text);
}

/// Every function of the header is in the library, and nothing else of ours.
#[test]
fn the_library_exports_what_the_header_declares() {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/terrace_copy.h"));
    let header = header.expect("the header");
    let mut declared: Vec<&str> = header
        .lines()
        .filter_map(|line| {
            line.split_once('(').filter(|(before, _)| !line.starts_with([' ', '/', '#']) && before.contains(' '))
        })
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("terrace_copy_"))
        .collect();
    let source = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/entry.rs")).expect("source");
    let mut exported: Vec<&str> =
        source.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    declared.sort_unstable();
    exported.sort_unstable();
    assert_eq!(declared, exported);
    assert!(declared.len() > 20, "{declared:?}");
}
