//! The gather kernel under NVIDIA's compiler, without a GPU. `tests/nvrtc/run` brings the compiler and calls this.

use std::path::{Path, PathBuf};

use terrace_kernels::CopyError;
use terrace_kernels::cuda::{BUILT_IN_PTX, KERNEL_SOURCE, Nvrtc, Target};

/// The matrix product of the device suite.
const MATMUL_SOURCE: &str = include_str!("../src/bin/terrace-gpu-suite/matmul.cu");
const MATMUL_PTX: &str = include_str!("../src/bin/terrace-gpu-suite/matmul.ptx");

/// The library that a variable names. Without it the caller says so and does nothing.
fn named(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("NOT RUN: {variable} names no NVRTC; tests/nvrtc/run fetches it");
    }
    path
}

fn ptx(nvrtc: &Nvrtc, source: &str, capability: (u32, u32)) -> String {
    let image = nvrtc.compile(source, Target::Ptx(capability.0, capability.1)).expect("PTX");
    assert_eq!(image.last(), Some(&0), "the driver wants a zero byte at the end");
    String::from_utf8(image).expect("PTX is text").trim_end_matches('\0').to_owned()
}

/// The instructions of PTX that load from, or store to, global memory.
fn accesses<'a>(ptx: &'a str, start: &str) -> Vec<&'a str> {
    ptx.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with(start))).collect()
}

fn is_wide(instruction: &&&str) -> bool {
    instruction.contains(".v4.") || instruction.contains(".b128")
}

#[test]
fn every_architecture_gets_wide_accesses() {
    let Some(path) = named("TERRACE_NVRTC") else { return };
    let nvrtc = Nvrtc::open(Some(&path)).expect("the wheel's library");
    println!("NVRTC {:?}", nvrtc.version());
    for capability in [(8, 0), (9, 0), (10, 0)] {
        let text = ptx(&nvrtc, KERNEL_SOURCE, capability);
        let (loads, stores) = (accesses(&text, "ld.global"), accesses(&text, "st.global"));
        let (wide_loads, wide_stores): (Vec<_>, Vec<_>) =
            (loads.iter().filter(is_wide).collect(), stores.iter().filter(is_wide).collect());
        println!(
            "sm_{}{}: {} of {} loads wide ({}), {} of {} stores wide ({})",
            capability.0,
            capability.1,
            wide_loads.len(),
            loads.len(),
            wide_loads.first().map_or("none", |wide| wide),
            wide_stores.len(),
            stores.len(),
            wide_stores.first().map_or("none", |wide| wide),
        );
        // Eight in flight, and the loop for what is left.
        assert!(wide_loads.len() >= 9 && wide_stores.len() >= 9, "the compiler made no wide accesses");
        assert!(!text.contains("bar.sync") && !text.contains(".shared"), "threads share nothing");
        assert!(!text.contains(".local"), "registers spill to memory");
        let machine = nvrtc.compile(KERNEL_SOURCE, Target::Machine(capability.0, capability.1)).expect("machine code");
        assert!(machine.starts_with(b"\x7fELF") && machine.windows(14).any(|part| part == b"terrace_gather"));
    }
}

#[test]
fn the_built_in_ptx_is_of_this_source() {
    let Some(path) = named("TERRACE_NVRTC_EARLY") else { return };
    let nvrtc = Nvrtc::open(Some(&path)).expect("the wheel's library");
    for (source, built_in, file) in [
        (KERNEL_SOURCE, BUILT_IN_PTX, "src/cuda/gather.ptx"),
        (MATMUL_SOURCE, MATMUL_PTX, "src/bin/terrace-gpu-suite/matmul.ptx"),
    ] {
        let text = ptx(&nvrtc, source, (8, 0));
        if std::env::var_os("TERRACE_NVRTC_WRITE").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            std::fs::write(&file, &text).expect("a file of the tree");
            println!("{} is written: build again", file.display());
            continue;
        }
        assert!(text == built_in, "the source of {file} was changed: run tests/nvrtc/run --write");
        println!("{file} is of its source: {}", text.lines().find(|line| line.starts_with(".version")).unwrap_or("?"));
    }
}

#[test]
fn the_matrix_product_uses_tensor_cores() {
    let Some(path) = named("TERRACE_NVRTC") else { return };
    let nvrtc = Nvrtc::open(Some(&path)).expect("the wheel's library");
    for capability in [(8, 0), (9, 0), (10, 0)] {
        let text = ptx(&nvrtc, MATMUL_SOURCE, capability);
        let products = text.lines().filter(|line| line.contains("mma.sync.aligned.m16n8k16")).count();
        assert!(products >= 32 && !text.contains(".local"), "{products} products in sm_{capability:?}");
        nvrtc.compile(MATMUL_SOURCE, Target::Machine(capability.0, capability.1)).expect("machine code");
    }
}

#[test]
fn faults_of_a_source_are_told() {
    let Some(path) = named("TERRACE_NVRTC") else { return };
    let nvrtc = Nvrtc::open(Some(&path)).expect("the wheel's library");
    let error = nvrtc.compile("extern \"C\" __global__ void f() { nonsense; }", Target::Machine(9, 0));
    assert!(matches!(&error, Err(CopyError::Failed(text)) if text.contains("nonsense")), "{error:?}");
    assert!(nvrtc.compile(KERNEL_SOURCE, Target::Machine(1, 0)).is_err());
    assert!(nvrtc.compile("a zero\0byte", Target::Ptx(8, 0)).is_err());
}

#[test]
fn a_compiler_that_is_not_there_is_named() {
    let error = Nvrtc::open(Some(Path::new("/nowhere/libnvrtc.so"))).expect_err("nothing is there");
    let text = error.to_string();
    assert!(matches!(error, CopyError::MissingLibrary { .. }) && text.contains("libnvrtc"), "{text}");
}
