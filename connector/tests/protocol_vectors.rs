//! The frames in `tests/protocol/vectors.json` and this crate say the same. Other languages check the same file.

mod protocol;

use std::collections::BTreeSet;
use std::path::PathBuf;

use protocol::{MESSAGE_BYTES, Page, cases, decode_frame, encode_frame, page, unhex};
use terrace_connector::protocol::{Answer, FrameFlags, Kind};

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "tests", "protocol", "vectors.json"].iter().collect()
}

fn on_disk() -> Page {
    let text = std::fs::read_to_string(file()).expect("tests/protocol/vectors.json");
    serde_json::from_str(&text).expect("tests/protocol/vectors.json is a page of vectors")
}

/// Writes the file anew: `cargo test --release -p terrace-connector --test protocol_vectors -- --ignored regenerate`.
#[test]
#[ignore = "writes tests/protocol/vectors.json"]
fn regenerate() {
    let mut text = serde_json::to_string_pretty(&page()).expect("a page as JSON");
    text.push('\n');
    std::fs::write(file(), text).expect("tests/protocol/vectors.json can be written");
}

#[test]
fn the_file_is_what_this_code_says() {
    let (file, code) = (on_disk(), page());
    for (in_file, in_code) in file.vectors.iter().zip(&code.vectors) {
        assert_eq!(in_file, in_code);
    }
    for (in_file, in_code) in file.refusals.iter().zip(&code.refusals) {
        assert_eq!(in_file, in_code);
    }
    assert!(file == code, "vectors were added or removed: see tests/protocol/README.md");
}

#[test]
fn each_vector_is_read_to_its_message_and_written_to_its_bytes() {
    let file = on_disk();
    let cases = cases();
    assert_eq!(file.vectors.len(), cases.len());
    for (vector, case) in file.vectors.iter().zip(cases) {
        let bytes = unhex(&vector.frame_hex);
        let (header, message) =
            decode_frame(&bytes, MESSAGE_BYTES).unwrap_or_else(|e| panic!("{}: {e:?}", vector.name));
        assert_eq!(message, case.message, "{}", vector.name);
        assert_eq!((header.kind, header.flags), (case.header.kind, case.header.flags), "{}", vector.name);
        assert_eq!((header.sequence, header.descriptors), (vector.sequence, vector.descriptors), "{}", vector.name);
        assert_eq!(encode_frame(header, &message), bytes, "{}", vector.name);
    }
}

#[test]
fn each_refusal_is_refused_for_its_reason() {
    for refusal in on_disk().refusals {
        let error = decode_frame(&unhex(&refusal.frame_hex), MESSAGE_BYTES).expect_err(&refusal.name);
        assert_eq!(error.name(), refusal.error, "{}: {error:?}", refusal.name);
    }
}

#[test]
fn every_part_of_a_frame_that_is_missing_is_noticed() {
    for vector in on_disk().vectors {
        let bytes = unhex(&vector.frame_hex);
        let step = if bytes.len() > 1000 { 97 } else { 1 };
        for end in (0..bytes.len()).step_by(step) {
            let error = decode_frame(&bytes[..end], MESSAGE_BYTES).expect_err("a part of a frame");
            assert_eq!(error.name(), "short", "the first {end} bytes of {}", vector.name);
        }
    }
}

#[test]
fn the_vectors_have_every_kind_in_every_direction() {
    let seen: BTreeSet<_> = on_disk().vectors.iter().map(|vector| (vector.kind, vector.flags)).collect();
    for kind in Kind::ALL {
        let number = kind as u16;
        let expected: &[u32] = match kind {
            Kind::Complete
            | Kind::StoreRows
            | Kind::LoadRows
            | Kind::Bye
            | Kind::Goodbye
            | Kind::Copy
            | Kind::Copied => &[4],
            _ => &[0, 1],
        };
        assert!(expected.iter().all(|flags| seen.contains(&(number, *flags))), "{kind:?}");
    }
    assert!(seen.iter().any(|(_, flags)| *flags == 3), "a refusal");
    let names: BTreeSet<_> = page().vectors.into_iter().map(|vector| vector.name).collect();
    assert_eq!(names.len(), page().vectors.len(), "each name once");
}

#[test]
fn an_answer_is_one_byte() {
    for byte in 0..=u8::MAX {
        if let Some(answer) = Answer::from_byte(byte) {
            assert_eq!(answer.to_byte(), byte);
        }
    }
    let valid = (0..=u8::MAX).filter(|byte| Answer::from_byte(*byte).is_some()).count();
    assert_eq!(valid, 3 + 32 + 32, "three that stand alone, two with 32 origins each");
    for tier in 0..32 {
        assert_eq!(Answer::from_byte(Answer::Found { tier }.to_byte()), Some(Answer::Found { tier }));
    }
}

#[test]
fn flags_are_four_and_no_others() {
    let four = [FrameFlags::REQUEST, FrameFlags::REPLY, FrameFlags::ERROR, FrameFlags::ONE_WAY];
    for (bits, flags) in [0, 1, 3, 4].into_iter().zip(four) {
        let name = format!("{flags:?}");
        let case = cases().into_iter().find(|case| case.header.flags == flags).expect(&name);
        let frame = encode_frame(case.header, &case.message);
        assert_eq!(u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]]), bits, "{name}");
    }
}
