//! `tests/protocol/vectors.json`: what is in it, and the frames that everybody refuses.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use terrace_connector::protocol::{HEADER_BYTES, Kind, MAX_HELLO_BYTES};

use super::cases::cases;
use super::frames::{Message, encode_frame};
use super::named::named;
use super::{MESSAGE_BYTES, hex};

/// The file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    pub version: u16,
    pub message_bytes: u32,
    pub vectors: Vec<Vector>,
    pub refusals: Vec<Refusal>,
}

/// A frame that both sides write and read in this very way.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Vector {
    pub name: String,
    pub kind: u16,
    pub flags: u32,
    pub sequence: u64,
    pub descriptors: u16,
    pub message: String,
    pub body: Value,
    pub frame_hex: String,
}

/// A frame that both sides refuse.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    pub name: String,
    pub frame_hex: String,
    pub error: String,
}

/// What the file must be.
pub fn page() -> Page {
    let vectors = cases().into_iter().map(|case| {
        let frame = encode_frame(case.header, &case.message);
        let (message, body) = named(&case.message);
        Vector {
            name: case.name,
            kind: case.header.kind as u16,
            flags: u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]]),
            sequence: case.header.sequence,
            descriptors: case.header.descriptors,
            message: message.into(),
            body,
            frame_hex: hex(&frame),
        }
    });
    Page { version: 1, message_bytes: MESSAGE_BYTES, vectors: vectors.collect(), refusals: refusals() }
}

/// Frames that are wrong in one way each.
pub fn refusals() -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut add = |name: &str, frame: Vec<u8>, error: &str| {
        refusals.push(Refusal { name: name.into(), frame_hex: hex(&frame), error: error.into() });
    };
    let ping = frame("ping");
    let changed = |at: usize, byte: u8| {
        let mut frame = ping.clone();
        frame[at] = byte;
        frame
    };
    add("nothing", Vec::new(), "short");
    add("half a header", ping[..16].to_vec(), "short");
    add("a header but for its last byte", ping[..HEADER_BYTES - 1].to_vec(), "short");
    add("another magic", changed(3, b'D'), "magic");
    add("the magic in lower case", changed(0, b't'), "magic");
    add("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), "magic");
    add("version 0", changed(4, 0), "version");
    add("version 2", changed(4, 2), "version");
    add("version 257: its low byte is right", changed(5, 1), "version");
    add("the version in the other byte order", [&ping[..4], &[0, 1], &ping[6..]].concat(), "version");
    add("kind 0", changed(6, 0), "kind");
    add("kind 19", changed(6, 19), "kind");
    add("kind 262: its low byte is right", changed(7, 1), "kind");
    for (flags, name) in
        [(2, "error without reply"), (5, "reply and one way"), (7, "all flags"), (8, "an unknown flag")]
    {
        add(name, changed(8, flags), "flags");
    }
    add("an unknown flag in the last byte", changed(11, 0x80), "flags");
    add("three descriptors", changed(24, 3), "descriptors");
    add("256 descriptors", changed(25, 1), "descriptors");
    add("the first reserved byte", changed(26, 1), "reserved");
    add("the last reserved byte", changed(31, 0xff), "reserved");
    let length = |kind: Kind, length: u32| {
        let mut frame = ping.clone();
        frame[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
        frame[12..16].copy_from_slice(&length.to_le_bytes());
        frame
    };
    add("a body of 4 GiB", length(Kind::Lookup, u32::MAX), "length");
    add("a body of one byte more than allowed", length(Kind::Lookup, MESSAGE_BYTES + 1), "length");
    add("a hello of one byte more than allowed", length(Kind::Hello, MAX_HELLO_BYTES + 1), "length");
    add("a body that does not come", length(Kind::Lookup, 1), "short");
    add("a frame and one byte", [ping.as_slice(), &[0]].concat(), "long");

    add("a body where none belongs", body("ping", &[0xc0]), "body");
    add("no body where one belongs", body("lookup of a prefix", &[]), "body");
    add("a body that is one number", body("lookup of a prefix", &[7]), "body");
    add("a body that is nil", body("lookup of a prefix", &[0xc0]), "body");
    add("a byte that MessagePack never uses", body("lookup of a prefix", &[0xc1]), "body");
    add("a field too few", body("lookup of nothing", &[0x93, 0, 0, 0xc3]), "body");
    add("a field too many", body("lookup of nothing", &[0x95, 0, 0, 0xc3, 0x90, 0]), "body");
    add("a byte after the message", body("lookup of nothing", &[0x94, 0, 0, 0xc3, 0x90, 0]), "body");
    add("a number below 0", body("lookup of nothing", &[0x94, 0xff, 0, 0xc3, 0x90]), "body");
    let beyond = [0x94, 0, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0, 0xc3, 0x90];
    add("a number of 33 bits in a field of 32", body("lookup of nothing", &beyond), "body");
    add("a number where true or false belongs", body("lookup of nothing", &[0x94, 0, 0, 1, 0x90]), "body");
    add("nil where a list belongs", body("lookup of nothing", &[0x94, 0, 0, 0xc3, 0xc0]), "body");
    add("text where a number belongs", body("lookup of nothing", &[0x94, 0xa1, b'1', 0, 0xc3, 0x90]), "body");
    add(
        "a float where a number belongs",
        body("lookup of nothing", &[0x94, 0xca, 0x3f, 0xc0, 0, 0, 0, 0xc3, 0x90]),
        "body",
    );
    add("text that is not UTF-8", body("goodbye", &[0x91, 0xa2, 0xc3, 0x28]), "body");
    add("a number where text belongs", body("goodbye", &[0x91, 5]), "body");
    add("a number where bytes belong", body("unpin", &[0x92, 1, 5]), "body");
    add("bytes that are not all there", body("unpin", &[0x92, 1, 0xc4, 9, 1, 2]), "body");
    add("4 GiB of bytes announced", body("unpin", &[0x92, 1, 0xc6, 0xff, 0xff, 0xff, 0xff, 1]), "body");
    add("4 billion jobs announced", body("no job is complete", &[0x91, 0xdd, 0xff, 0xff, 0xff, 0xff]), "body");
    add("lists in lists in lists", body("no job is complete", &[0x91; 20_000]), "body");
    let code = [0x92, 0xce, 0, 1, 0, 0, 0xa0];
    add("a code of 17 bits", body("refused: Retry", &code), "body");
    let whole = frame("hello of a tier with its region");
    add(
        "a hello that ends early",
        body("hello of a tier with its region", &whole[HEADER_BYTES..whole.len() - 1]),
        "body",
    );
    add("pages outside of a group", body("attach nothing", &nothing_attached(&[0x91, 5])), "body");
    add(
        "a page without its stride",
        body("attach nothing", &nothing_attached(&[0x91, 0x91, 0x94, 0, 0, 1, 1])),
        "body",
    );
    add("copies of which nobody says which way", body("copy nothing", &[0x92, 0xc0, 0x90]), "body");
    add("a job without slots", body("copy nothing", &[0x92, 0xc3, 0x91, 0x94, 1, 0xc4, 0, 0xc4, 0, 0xc4, 0]), "body");
    add("a copied job that is only a number", body("nothing was copied", &[0x91, 0x91, 7]), "body");
    add("copied as a request", with_flags("nothing was copied", 0), "flags");
    add("copy as a request", with_flags("copy nothing", 0), "flags");
    add("attach one way", with_flags("attach nothing", 4), "flags");
    refusals
}

/// The body of an `Attach` in which all but `groups` is empty.
fn nothing_attached(groups: &[u8]) -> Vec<u8> {
    [&[0x98, 0xc4, 0, 0x90], groups, &[0, 0, 0xc0, 0xc4, 0, 0xc4, 0]].concat()
}

/// The frame of a vector with other flags.
fn with_flags(name: &str, flags: u8) -> Vec<u8> {
    let mut frame = frame(name);
    frame[8] = flags;
    frame
}

/// The frame of the vector with this name.
fn frame(name: &str) -> Vec<u8> {
    let (header, message) = find(name);
    encode_frame(header, &message)
}

/// Its header with another body.
fn body(name: &str, body: &[u8]) -> Vec<u8> {
    let (header, _) = find(name);
    let mut header = header.to_bytes();
    let length = u32::try_from(body.len()).expect("a short body");
    header[12..16].copy_from_slice(&length.to_le_bytes());
    [header.as_slice(), body].concat()
}

fn find(name: &str) -> (terrace_connector::protocol::FrameHeader, Message) {
    let case = cases().into_iter().find(|case| case.name == name).expect("a vector of this name");
    (case.header, case.message)
}
