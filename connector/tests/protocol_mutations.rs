//! A bounded fuzz run: frames of the vectors with bytes changed, cut out, doubled and moved. `tests/fuzz/run` goes on for as
//! long as one likes.

mod protocol;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use protocol::{Page, check, page, repair, unhex};

const CASES: u32 = 100_000;

/// One change to a frame.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Number(Index, u32),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    Repeat(Index, Index),
    Cut(Index),
    /// The rest of another frame's body.
    Splice(Index, Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let telling = prop_oneof![Just(0xc0_u8), Just(0xc1), Just(0xc4), Just(0xc6), Just(0xdd), Just(0xdf), any::<u8>()];
    let number = prop_oneof![Just(0), Just(u32::MAX), Just(1 << 31), 0..64_u32];
    prop_oneof![
        4 => (at(), telling).prop_map(|(at, byte)| Change::Set(at, byte)),
        4 => (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        2 => (at(), number).prop_map(|(at, n)| Change::Number(at, n)),
        2 => (at(), prop::collection::vec(any::<u8>(), 0..24)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        2 => (at(), at()).prop_map(|(from, to)| Change::Remove(from, to)),
        2 => (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
        1 => at().prop_map(Change::Cut),
        2 => (at(), at(), at()).prop_map(|(at, other, from)| Change::Splice(at, other, from)),
    ]
}

fn apply(change: &Change, frame: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    if frame.is_empty() {
        return;
    }
    let length = frame.len();
    let range = |a: &Index, b: &Index| {
        let (a, b) = (a.index(length), b.index(length));
        a.min(b)..a.max(b)
    };
    match change {
        Change::Set(at, byte) => frame[at.index(length)] = *byte,
        Change::Flip(at, bit) => frame[at.index(length)] ^= 1 << bit,
        Change::Number(at, number) => {
            let at = at.index(length);
            number.to_be_bytes().iter().zip(&mut frame[at..]).for_each(|(from, to)| *to = *from);
        }
        Change::Insert(at, bytes) => {
            let at = at.index(length);
            frame.splice(at..at, bytes.iter().copied());
        }
        Change::Remove(from, to) => drop(frame.drain(range(from, to))),
        Change::Repeat(from, to) => frame.extend_from_within(range(from, to)),
        Change::Cut(at) => frame.truncate(at.index(length)),
        Change::Splice(at, other, from) => {
            let other = &seeds[other.index(seeds.len())];
            frame.truncate(at.index(length));
            frame.extend_from_slice(&other[from.index(other.len())..]);
        }
    }
}

/// Every frame of the page but the longest: they cost most and say least.
fn seeds() -> Vec<Vec<u8>> {
    let Page { vectors, refusals, .. } = page();
    let frames = vectors.into_iter().map(|v| v.frame_hex).chain(refusals.into_iter().map(|r| r.frame_hex));
    frames.map(|hex| unhex(&hex)).filter(|frame| (1..8192).contains(&frame.len())).collect()
}

#[test]
fn changed_frames_are_refused_or_are_messages() {
    let seeds = seeds();
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    // The same frames in every run.
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let (taken, repaired) = (std::cell::Cell::new(0_u32), std::cell::Cell::new(0_u32));
    let strategy = (any::<Index>(), prop::collection::vec(change(), 1..6));
    let result = runner.run(&strategy, |(seed, changes)| {
        let mut frame = seeds[seed.index(seeds.len())].clone();
        changes.iter().for_each(|change| apply(change, &mut frame, &seeds));
        taken.set(taken.get() + u32::from(check(&frame)));
        repaired.set(repaired.get() + u32::from(repair(&frame).is_some_and(|frame| check(&frame))));
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    // Were all of them refused at the first byte, nothing would have been tried.
    let (taken, repaired) = (taken.get(), repaired.get());
    assert!(taken > CASES / 100 && repaired > CASES / 20, "{taken} as they were, {repaired} with the header repaired");
}
