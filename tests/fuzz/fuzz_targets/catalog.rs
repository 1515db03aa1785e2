//! Any bytes as an entry of the catalog and as its own record: the codec that RocksDB's values go through, compiled without RocksDB. The first
//! byte is the length of the key.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod nvme {
    pub use terrace_tiers::nvme::BlockName;
}

#[path = "parts/catalog.rs"]
mod catalog;

fuzz_target!(|bytes: &[u8]| catalog::check(bytes));
