//! Nanoseconds a key: a prefix of 1,000 resident keys looked up in the block table, beside a bare hash table of the same keys.
//!
//! `cargo run --release -p terrace-primary --example probe [RESIDENT..]`

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

use terrace_config::Policy;
use terrace_primary::{Key, Primary};

/// A fast hash for keys of random bytes: two wide multiplications over all of them.
#[derive(Default)]
struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(16) {
            let mut padded = [0; 16];
            padded[..pair.len()].copy_from_slice(pair);
            let pair = u128::from_le_bytes(padded);
            let product = u128::from(pair as u64 ^ self.0 ^ 0x2d35_8dcc_aa6c_78a5)
                * u128::from((pair >> 64) as u64 ^ 0x8bb8_4b93_962e_acc9);
            self.0 = product as u64 ^ (product >> 64) as u64;
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

type Bare = HashMap<[u8; 36], u32, BuildHasherDefault<Folding>>;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn hash(block: u64) -> [u8; 32] {
    let mut state = block;
    let mut hash = [0; 32];
    for word in hash.as_chunks_mut::<8>().0 {
        *word = random(&mut state).to_le_bytes();
    }
    hash
}

/// Median over the prefixes, in nanoseconds a key; interleaved rounds, so that both see the same neighbours.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds a block that a full table takes to store 64 new blocks: looked up, 64 evicted, inserted, published and ranked.
fn churn(primary: &mut Primary, first: u64) -> f64 {
    let mut times = Vec::new();
    let mut evicted = Vec::with_capacity(64);
    for round in 0..400 {
        let keys: Vec<Key> =
            (0..64).map(|i| Key::new(&hash(first + round * 64 + i), 0).expect("a hash of 32 bytes")).collect();
        let mut slots = Vec::with_capacity(64);
        evicted.clear();
        let start = Instant::now();
        primary.find_batch(
            &keys,
            |_, found| if found.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) },
        );
        assert!(primary.make_room(64, &mut evicted));
        for key in &keys {
            slots.extend(primary.insert_writing(key));
        }
        for slot in &slots {
            primary.publish(*slot);
        }
        primary.touch(&slots);
        times.push(start.elapsed().as_nanos() as f64 / 64.0);
        assert_eq!((slots.len(), evicted.len()), (64, 64));
    }
    median(times)
}

fn measure(resident: u32, prefix: usize) {
    let mut primary = Primary::new(resident, 32, Policy::Lru);
    let mut bare = Bare::with_capacity_and_hasher(resident as usize, BuildHasherDefault::default());
    for block in 0..resident {
        let key = Key::new(&hash(u64::from(block)), 0).expect("a hash of 32 bytes");
        let slot = primary.insert_writing(&key).expect("room for all");
        primary.publish(slot);
        bare.insert(key.as_bytes().try_into().expect("36 bytes"), block);
    }
    let (mut bare_ns, mut scattered_ns, mut chained_ns, mut single_ns) = (vec![], vec![], vec![], vec![]);
    let mut state = 7;
    for _ in 0..400 {
        let first = random(&mut state) % u64::from(resident);
        // A prefix whose blocks are anywhere in the table, and one whose blocks came one after the other.
        let scattered: Vec<u64> = (0..prefix).map(|_| random(&mut state) % u64::from(resident)).collect();
        let chained: Vec<u64> = (0..prefix as u64).map(|i| (first + i) % u64::from(resident)).collect();
        let keys = |blocks: &[u64]| -> Vec<Key> {
            blocks.iter().map(|block| Key::new(&hash(*block), 0).expect("a hash of 32 bytes")).collect()
        };
        let (scattered, chained) = (keys(&scattered), keys(&chained));
        let plain: Vec<[u8; 36]> = scattered.iter().map(|key| key.as_bytes().try_into().expect("36 bytes")).collect();

        let start = Instant::now();
        let sum: u64 = plain.iter().map(|key| u64::from(bare[black_box(key)])).sum();
        bare_ns.push(start.elapsed().as_nanos() as f64 / prefix as f64);
        black_box(sum);
        for (keys, times) in [(&scattered, &mut scattered_ns), (&chained, &mut chained_ns)] {
            let start = Instant::now();
            let mut sum = 0;
            primary.find_batch(black_box(keys), |_, found| match found {
                Some((slot, _)) => {
                    sum += u64::from(slot.0);
                    ControlFlow::Continue(())
                }
                None => ControlFlow::Break(()),
            });
            times.push(start.elapsed().as_nanos() as f64 / prefix as f64);
            black_box(sum);
        }
        let fresh: Vec<u64> = (0..prefix).map(|_| random(&mut state) % u64::from(resident)).collect();
        let fresh = keys(&fresh);
        let start = Instant::now();
        let sum: u64 = fresh.iter().filter_map(|key| primary.find(black_box(key))).map(|slot| u64::from(slot.0)).sum();
        single_ns.push(start.elapsed().as_nanos() as f64 / prefix as f64);
        black_box(sum);
    }
    let churn = churn(&mut primary, u64::from(resident));
    let (bare, scattered, chained) = (median(bare_ns), median(scattered_ns), median(chained_ns));
    println!(
        "{resident:>9} {bare:>10.1} {scattered:>10.1} {:>7.2} {chained:>10.1} {:>7.2} {:>10.1} {churn:>10.1} {:>12.2}",
        scattered / bare,
        chained / bare,
        median(single_ns),
        primary.table_bytes() as f64 / f64::from(resident),
    );
}

fn main() {
    let sizes: Vec<u32> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 100_000, 1_000_000, 10_000_000] } else { sizes };
    println!(
        "{:>9} {:>10} {:>10} {:>7} {:>10} {:>7} {:>10} {:>10} {:>12}",
        "resident", "bare ns", "batch ns", "ratio", "chained ns", "ratio", "single ns", "store ns", "bytes a slot"
    );
    for resident in sizes {
        measure(resident, 1_000);
    }
}
