//! Any bytes as a frame: first as they are, then with a header that is right, so that the body is what is tried.
#![no_main]

#[path = "../../../connector/tests/protocol/mod.rs"]
mod protocol;

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;

/// Writes the frames of the vectors where `TERRACE_FUZZ_SEEDS` says, before libFuzzer reads its corpus.
fn write_seeds() {
    let Some(folder) = std::env::var_os("TERRACE_FUZZ_SEEDS").map(PathBuf::from) else { return };
    std::fs::create_dir_all(&folder).expect("the folder of the seeds can be made");
    let page = protocol::page();
    let frames = page.vectors.iter().map(|vector| &vector.frame_hex);
    for (number, frame) in frames.chain(page.refusals.iter().map(|refusal| &refusal.frame_hex)).enumerate() {
        let file = folder.join(format!("vector-{number:03}"));
        std::fs::write(file, protocol::unhex(frame)).expect("a seed can be written");
    }
}

fuzz_target!(
    init: write_seeds(),
    |bytes: &[u8]| {
        protocol::check(bytes);
        if let Some(frame) = protocol::repair(bytes) {
            protocol::check(&frame);
        }
    }
);
