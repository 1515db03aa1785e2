//! What the tests of the protocol share: any frame as bytes and back, whatever its kind.
#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

mod cases;
mod frames;
mod named;
mod page;
mod rules;

pub use cases::{Case, cases};
pub use frames::{FrameError, Message, decode_frame, encode_frame};
pub use named::named;
pub use page::{Page, Refusal, Vector, page, refusals};
pub use rules::{check, repair};

/// Longest body of a frame that is no `Hello`: the default of `server.message_bytes`.
pub const MESSAGE_BYTES: u32 = 1 << 20;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "an odd number of digits");
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digit).collect()
}
