//! The header's structs and numbers. `tests/c_program.rs` compares both with what a C compiler makes of the header.
#![allow(missing_docs, reason = "said once, in include/terrace_copy.h")]

use std::ffi::c_char;

pub const ABI: u32 = 1;

pub mod code {
    //! `TERRACE_COPY_OK` and what follows it.
    pub const OK: i32 = 0;
    pub const INVALID: i32 = 1;
    pub const HANDLE: i32 = 2;
    pub const UNSUPPORTED: i32 = 3;
    pub const MISSING_LIBRARY: i32 = 4;
    pub const OUT_OF_MEMORY: i32 = 5;
    pub const FULL: i32 = 6;
    pub const TIMEOUT: i32 = 7;
    pub const DEVICE_LOST: i32 = 8;
    pub const FAILED: i32 = 9;
    pub const INTERNAL: i32 = 10;
}

pub const AUTO: u32 = 0;
pub const HOST: u32 = 1;
pub const CUDA: u32 = 2;

pub const PATH_AUTO: u32 = 0;
pub const PATH_BATCH: u32 = 1;
pub const PATH_RUNS: u32 = 2;
pub const PATH_RECTS: u32 = 3;
pub const PATH_KERNEL: u32 = 4;

pub const NO_COPIES: u32 = 1;

pub const STORE: u32 = 0;
pub const LOAD: u32 = 1;

pub const NO_POINT: u32 = 0;
pub const STREAM: u32 = 1;
pub const EVENT: u32 = 2;

/// `terrace_copy_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub size: u32,
    pub kind: u32,
    pub path: u32,
    pub flags: u32,
    pub device: *const c_char,
    pub nvrtc: *const c_char,
    pub cache_dir: *const c_char,
    pub piece_bytes: u64,
    pub kernel_blocks: u32,
    pub queue_entries: u32,
    pub host_threads: u32,
    pub register_threads: u32,
}

/// `terrace_copy_region_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionState {
    pub bytes: u64,
    pub pieces: u32,
    pub registered: u32,
    pub refused: u32,
    pub is_over: u32,
}

/// `terrace_copy_pages`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    pub base: u64,
    pub page_bytes: u64,
    pub page_stride: u64,
    pub num_blocks: u32,
    pub reserved: u32,
}

/// `terrace_copy_slots`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub base: u64,
    pub stride: u64,
    pub slots: u32,
    pub reserved: u32,
}

/// `terrace_copy_job`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub id: u64,
    pub block_ids: *const u32,
    pub group_sizes: *const u32,
    pub block_indices: *const u32,
    pub slots: *const u32,
    pub n_block_ids: u32,
    pub n_groups: u32,
    pub n_slots: u32,
    pub reserved: u32,
}

/// `terrace_copy_order`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Points {
    pub after_kind: u32,
    pub before_kind: u32,
    pub after: u64,
    pub before: u64,
}

/// `terrace_copy_ended`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub id: u64,
    pub bytes: u64,
    pub micros: u64,
    pub code: i32,
    pub reserved: u32,
}
