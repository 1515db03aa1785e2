//! Right bytes on every path, length, alignment, layout and direction; order; faults.
#![expect(unsafe_code, reason = "work on the model's stream")]

use std::sync::Arc;

use terrace_kernels::cuda::{Driver, Path, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order, Token};

use super::Report;
use super::rig::{Place, Rig};

const POISON: u8 = 0xA5;
pub const CHOICES: [(&str, PathChoice); 5] = [
    ("auto", PathChoice::Auto),
    ("runs", PathChoice::Only(Path::Runs)),
    ("batch", PathChoice::Only(Path::Batch)),
    ("rects", PathChoice::Only(Path::Rects)),
    ("kernel", PathChoice::Only(Path::Kernel)),
];
const LENGTHS: [usize; 14] =
    [1, 15, 16, 17, 511, 2048, 4095, 4096, 4097, 16 << 10, 64 << 10, 100_000, 512 << 10, (4 << 20) + 24];
/// Offsets in device and host memory.
const ALIGNMENTS: [(usize, usize); 6] = [(0, 0), (8, 24), (3, 3), (4, 16), (1, 0), (7, 2)];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[derive(Clone, Copy, Debug)]
enum Spread {
    /// Each run where the last one ends.
    Neighbours,
    /// At constant distances.
    Rows,
    /// Anywhere.
    Scattered,
}

/// Runs all cases with `bytes` of memory on either side, and this many of the alignments for each length, in turn.
pub fn run(driver: &Arc<dyn Driver>, bytes: usize, alignments: usize, report: &mut Report) {
    for (name, choice) in CHOICES {
        let mut rig = match Rig::new(driver, choice, bytes, true) {
            Ok(rig) => rig,
            Err(error @ CopyError::Unsupported(_)) => {
                report.not_run(&format!("path {name}"), &error.to_string());
                continue;
            }
            Err(error) => {
                report.case(&format!("path {name}"), || Err(error.to_string()));
                continue;
            }
        };
        let content: Vec<u8> = (0..bytes.div_ceil(8))
            .scan(Random(42), |random, _| Some(random.next().to_le_bytes()))
            .flatten()
            .take(bytes)
            .collect();
        for direction in [Direction::DeviceToHost, Direction::HostToDevice] {
            for spread in [Spread::Neighbours, Spread::Rows, Spread::Scattered] {
                report.case(&format!("bytes: path {name}, {direction:?}, {spread:?}"), || {
                    each_length(&mut rig, &content, direction, spread, alignments)
                });
            }
        }
        report.case(&format!("both directions at once: path {name}"), || both_ways(&mut rig, &content));
        report.case(&format!("a store between two kernels of the model: path {name}"), || between_kernels(&mut rig));
        report.case(&format!("a kernel of the model behind a load: path {name}"), || behind_a_load(&mut rig));
        let stats = rig.engine.cuda_stats();
        println!("  {stats:?}");
        report.case(&format!("the path was taken: {name}"), || {
            let taken = match choice {
                PathChoice::Auto => stats.run_bytes + stats.kernel_bytes + stats.rect_bytes,
                PathChoice::Only(Path::Kernel) => stats.kernel_bytes,
                PathChoice::Only(Path::Rects) => stats.rect_bytes,
                PathChoice::Only(_) => stats.run_bytes,
            };
            if taken > 0 && stats.pageable_bytes > 0 { Ok(()) } else { Err(format!("{stats:?}")) }
        });
    }
}

/// Runs of `len`, apart in both memories; targets never overlap.
fn places(bytes: usize, len: usize, (device, host): (usize, usize), spread: Spread) -> Vec<Place> {
    let gap = match spread {
        Spread::Neighbours => 0,
        // Keeps the alignment of the first.
        Spread::Rows | Spread::Scattered => (len / 2).next_multiple_of(16),
    };
    let pitch = len + gap;
    let count = ((bytes - 64) / pitch.max(1)).min(300);
    let order = |index: usize| match spread {
        // 211 is a prime above what is left of small counts: a permutation unless it divides the count.
        Spread::Scattered if !count.is_multiple_of(211) => index * 211 % count,
        _ => index,
    };
    (0..count).map(|index| Place { device: device + order(index) * pitch, host: host + index * pitch, len }).collect()
}

fn each_length(
    rig: &mut Rig,
    content: &[u8],
    direction: Direction,
    spread: Spread,
    alignments: usize,
) -> Result<(), String> {
    let bytes = rig.bytes;
    for (index, len) in LENGTHS.into_iter().enumerate().filter(|(_, len)| *len <= bytes / 4) {
        for alignment in ALIGNMENTS.into_iter().cycle().skip(index).take(alignments) {
            let places = places(bytes, len, alignment, spread);
            check(rig, content, direction, &places).map_err(|why| format!("{len} bytes at {alignment:?}: {why}"))?;
        }
    }
    Ok(())
}

/// Copies from random content over poison and compares every byte.
fn check(rig: &mut Rig, content: &[u8], direction: Direction, places: &[Place]) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let mut expected = vec![POISON; rig.bytes];
    let store = direction == Direction::DeviceToHost;
    if store {
        rig.write_device(content).map_err(told)?;
        let _ = rig.host.fill(0, rig.bytes, POISON);
    } else {
        rig.fill_device(POISON).map_err(told)?;
        let _ = rig.host.write(0, content);
    }
    for place in places {
        let (from, to) = if store { (place.device, place.host) } else { (place.host, place.device) };
        if let (Some(to), Some(from)) = (expected.get_mut(to..to + place.len), content.get(from..from + place.len)) {
            to.copy_from_slice(from);
        }
    }
    let id = rig.submit(direction, places, Order::default()).map_err(told)?;
    rig.finish(id).map_err(told)?;
    let mut found = vec![0; rig.bytes];
    if store {
        let _ = rig.host.read(0, &mut found);
    } else {
        rig.read_device(&mut found).map_err(told)?;
    }
    if found == expected {
        return Ok(());
    }
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        None => Err("lengths differ".to_owned()),
        Some(at) => Err(format!("byte {at} of the target is {:?}, not {:?}", found.get(at), expected.get(at))),
    }
}

/// Stores from the lower half of the device while loads fill its upper half.
fn both_ways(rig: &mut Rig, content: &[u8]) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let half = rig.bytes / 2;
    rig.write_device(content).map_err(told)?;
    let _ = rig.host.write(0, content);
    let page = 48 << 10;
    let pages = |device: usize, host: usize| -> Vec<Place> {
        (0..(half / 2) / page)
            .map(|index| Place { device: device + index * page, host: host + index * page, len: page })
            .collect()
    };
    // Device [0, 1/4) to host [1/2, 3/4); host [0, 1/4) to device [1/2, 3/4).
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(rig.submit(Direction::DeviceToHost, &pages(0, half), Order::default()).map_err(told)?);
        ids.push(rig.submit(Direction::HostToDevice, &pages(half, 0), Order::default()).map_err(told)?);
    }
    rig.engine.wait(&ids).map_err(told)?;
    let mut done = Vec::new();
    rig.engine.poll(&mut done);
    if done.len() != ids.len() || done.iter().any(|copy| copy.result.is_err()) {
        return Err(format!("{done:?}"));
    }
    let len = (half / 2) / page * page;
    let mut found = vec![0; rig.bytes];
    rig.read_device(&mut found).map_err(told)?;
    let mut stored = vec![0; len];
    let _ = rig.host.read(half, &mut stored);
    let source = content.get(..len).unwrap_or_default();
    if found.get(half..half + len) != Some(source) || stored != source {
        return Err("bytes differ".to_owned());
    }
    Ok(())
}

/// The model writes 1, a store reads, the model writes 2 at once: the store has seen 1 only.
fn between_kernels(rig: &mut Rig) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let _ = rig.host.fill(0, rig.bytes, 0);
    let places = places(rig.bytes / 2, 20_000, (0, 0), Spread::Rows);
    let model = Token::Stream(rig.stream);
    let order = Order { after: Some(model), before: Some(model), after_copy: None };
    let fill = |rig: &Rig, value: u8| {
        // SAFETY: the rig's memory and stream; the order keeps it and the store apart.
        unsafe { rig.driver.fill(rig.stream, rig.device, rig.bytes, value) }.map_err(|error| told(error.into()))
    };
    for _ in 0..8 {
        fill(rig, 9)?;
    }
    fill(rig, 1)?;
    let id = rig.submit(Direction::DeviceToHost, &places, order).map_err(told)?;
    fill(rig, 2)?;
    rig.finish(id).map_err(told)?;
    for place in &places {
        let mut found = vec![0; place.len];
        let _ = rig.host.read(place.host, &mut found);
        if let Some(wrong) = found.iter().find(|byte| **byte != 1) {
            return Err(format!("{place:?} holds {wrong}, not 1"));
        }
    }
    Ok(())
}

/// The model overwrites the first half of what a load brings, right behind it: the load has not overtaken it.
fn behind_a_load(rig: &mut Rig) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let len = rig.bytes / 2;
    let _ = rig.host.fill(0, rig.bytes, 7);
    rig.fill_device(POISON).map_err(told)?;
    let order = Order { before: Some(Token::Stream(rig.stream)), ..Order::default() };
    let places: Vec<Place> =
        (0..len / 4096).map(|page| Place { device: page * 4096, host: page * 4096, len: 4096 }).collect();
    let id = rig.submit(Direction::HostToDevice, &places, order).map_err(told)?;
    // SAFETY: the rig's memory and stream; the order keeps it behind the load.
    unsafe { rig.driver.fill(rig.stream, rig.device, len / 2, 9) }.map_err(|error| told(error.into()))?;
    rig.finish(id).map_err(told)?;
    let mut found = vec![0; rig.bytes];
    rig.read_device(&mut found).map_err(told)?;
    let right = |at: usize| {
        if at < len / 2 {
            9
        } else if at < len {
            7
        } else {
            POISON
        }
    };
    match found.iter().enumerate().find(|(at, byte)| **byte != right(*at)) {
        None => Ok(()),
        Some((at, byte)) => Err(format!("byte {at} is {byte}, not {}", right(at))),
    }
}
