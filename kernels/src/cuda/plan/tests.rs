//! Plans against a plain model: whatever the plan, exactly the bytes of the runs arrive, and no call breaks a rule.

use proptest::prelude::*;

use super::*;

const DEVICE_SIDE: usize = 1 << 40;
/// Both memories, as addresses: nothing is touched.
const DEVICE: usize = 1 << 32;
const HOST: usize = 1 << 33;
const AREA: usize = 1 << 16;

/// Host memory in pieces of `piece` bytes, of which some are registered.
struct Pieces {
    piece: usize,
    registered: Vec<bool>,
}

impl HostMap for Pieces {
    fn locate(&self, address: usize, len: usize) -> HostSpan {
        let index = (address - HOST) / self.piece;
        let piece = HOST + index * self.piece;
        let pinned =
            self.registered.get(index).copied().unwrap_or(false).then_some(Pinned { piece, to_device: DEVICE_SIDE });
        HostSpan { len: len.min(piece + self.piece - address), pinned }
    }
}

/// Executes a plan on (source, target) pairs of offsets: for each target byte of the area, the source byte that it gets.
fn execute(plan: &Plan, direction: Direction, pieces: &Pieces, tensor: usize) -> Vec<Option<usize>> {
    let mut target = vec![None; AREA];
    let (src_base, dst_base) = match direction {
        Direction::DeviceToHost => (DEVICE, HOST),
        Direction::HostToDevice => (HOST, DEVICE),
    };
    let mut copy = |run: CopyRun, one_call: bool| {
        let (device, host) = match direction {
            Direction::DeviceToHost => (run.src, run.dst),
            Direction::HostToDevice => (run.dst, run.src),
        };
        if one_call {
            assert_eq!(
                (host - HOST) / pieces.piece,
                (host + run.len - 1 - HOST) / pieces.piece,
                "crosses registrations"
            );
            assert_eq!((device - DEVICE) / tensor, (device + run.len - 1 - DEVICE) / tensor, "crosses tensors");
        }
        for byte in 0..run.len {
            let place = &mut target[run.dst - dst_base + byte];
            assert_eq!(*place, None, "written twice");
            *place = Some(run.src - src_base + byte);
        }
    };
    for run in plan.pageable.iter().chain(&plan.runs) {
        copy(*run, true);
    }
    for rect in &plan.rects {
        assert!(rect.src_pitch >= rect.width && rect.dst_pitch >= rect.width && rect.rows >= RECT_ROWS);
        for row in 0..rect.rows {
            copy(
                CopyRun { src: rect.src + row * rect.src_pitch, dst: rect.dst + row * rect.dst_pitch, len: rect.width },
                true,
            );
        }
        let all =
            |base: usize, pitch: usize| CopyRun { src: base, dst: base, len: pitch * (rect.rows - 1) + rect.width };
        let (src, dst) = (all(rect.src, rect.src_pitch), all(rect.dst, rect.dst_pitch));
        let (device, host) = if direction == Direction::DeviceToHost { (src, dst) } else { (dst, src) };
        assert_eq!((host.src - HOST) / pieces.piece, (host.src + host.len - 1 - HOST) / pieces.piece);
        assert_eq!((device.src - DEVICE) / tensor, (device.src + device.len - 1 - DEVICE) / tensor);
    }
    for tile in &plan.tiles {
        let (mut src, mut dst) = (tile.src as usize, tile.dst as usize);
        let host = if direction == Direction::DeviceToHost { &mut dst } else { &mut src };
        *host = host.checked_sub(DEVICE_SIDE).expect("the kernel is given the device's address");
        copy(CopyRun { src, dst, len: tile.len as usize }, false);
    }
    target
}

#[derive(Clone, Debug)]
struct Case {
    runs: Vec<CopyRun>,
    direction: Direction,
    piece: usize,
    registered: Vec<bool>,
    tensor: usize,
    choice: PathChoice,
    batch: bool,
    kernel: bool,
}

/// Bursts of runs: neighbours, constant distances, or anywhere. Targets grow, so that they never overlap.
fn cases() -> impl Strategy<Value = Case> {
    let burst = (1_usize..600, 1_usize..12, 0_usize..AREA, 0_usize..300, 0_usize..300, any::<bool>());
    let only = prop_oneof![
        Just(PathChoice::Auto),
        Just(PathChoice::Only(Path::Runs)),
        Just(PathChoice::Only(Path::Batch)),
        Just(PathChoice::Only(Path::Rects)),
        Just(PathChoice::Only(Path::Kernel)),
    ];
    (
        prop::collection::vec(burst, 1..12),
        any::<bool>(),
        prop_oneof![Just(1024_usize), Just(7000), Just(AREA)],
        prop::collection::vec(prop::bool::weighted(0.8), 80),
        prop_oneof![Just(4096_usize), Just(20_000), Just(AREA)],
        only,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(bursts, store, piece, registered, tensor, choice, batch, kernel)| {
            let direction = if store { Direction::DeviceToHost } else { Direction::HostToDevice };
            let (src_base, dst_base) = if store { (DEVICE, HOST) } else { (HOST, DEVICE) };
            let (mut runs, mut to) = (Vec::new(), 0);
            for (len, rows, from, src_gap, dst_gap, together) in bursts {
                let (src_gap, dst_gap) = if together { (0, 0) } else { (src_gap, dst_gap) };
                for row in 0..rows {
                    let src = from + row * (len + src_gap);
                    let device = if store { src } else { to };
                    // Runs lie in one tensor each, as the engine's contract says.
                    let fits = to + len <= AREA && src + len <= AREA && device / tensor == (device + len - 1) / tensor;
                    if fits {
                        runs.push(CopyRun { src: src_base + src, dst: dst_base + to, len });
                    }
                    to += len + dst_gap;
                }
            }
            Case { runs, direction, piece, registered, tensor, choice, batch, kernel }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_plan_copies_exactly_the_runs(case in cases(), known in any::<bool>()) {
        let mut ranges = DeviceRanges::default();
        if known {
            for base in (0..AREA).step_by(case.tensor) {
                ranges.add(DEVICE + base, case.tensor.min(AREA - base)).unwrap();
            }
        }
        let pieces = Pieces { piece: case.piece, registered: case.registered.clone() };
        let chooser = Chooser::new(case.choice, case.batch, case.kernel, Curves::default());
        let planner =
            Planner { direction: case.direction, ranges: &ranges, host: &pieces, chooser: &chooser, max_pitch: 4000 };
        let mut plan = Plan::default();
        plan.build(&planner, &[CopyRun { src: DEVICE, dst: HOST, len: 0 }]).unwrap();
        plan.build(&planner, &case.runs).unwrap();

        let mut expected = vec![None; AREA];
        let (src_base, dst_base) =
            if case.direction == Direction::DeviceToHost { (DEVICE, HOST) } else { (HOST, DEVICE) };
        for run in &case.runs {
            for byte in 0..run.len {
                expected[run.dst - dst_base + byte] = Some(run.src - src_base + byte);
            }
        }
        prop_assert!(execute(&plan, case.direction, &pieces, case.tensor) == expected);
        let bytes: usize = case.runs.iter().map(|run| run.len).sum();
        prop_assert_eq!(plan.bytes, bytes as u64);
        let by = plan.bytes_by;
        prop_assert_eq!(by.pageable + by.runs + by.rects + by.kernel, plan.bytes);
        prop_assert!(case.kernel || plan.tiles.is_empty());
        prop_assert!(known || plan.rects.is_empty(), "nothing is known of allocations");
    }
}

fn plan(choice: PathChoice, runs: &[CopyRun]) -> Plan {
    let mut ranges = DeviceRanges::default();
    ranges.add(DEVICE, AREA).unwrap();
    let pieces = Pieces { piece: AREA, registered: vec![true] };
    let chooser = Chooser::new(choice, true, true, Curves::default());
    let planner = Planner {
        direction: Direction::DeviceToHost,
        ranges: &ranges,
        host: &pieces,
        chooser: &chooser,
        max_pitch: 4000,
    };
    let mut plan = Plan::default();
    plan.build(&planner, runs).unwrap();
    plan
}

#[test]
fn neighbours_become_one_and_constant_distances_a_rect() {
    let at = |src: usize, dst: usize| CopyRun { src: DEVICE + src, dst: HOST + dst, len: 100 };
    let merged = plan(PathChoice::Only(Path::Runs), &[at(0, 500), at(100, 600), at(200, 700), at(400, 800)]);
    assert_eq!(merged.runs, [CopyRun { src: DEVICE, dst: HOST + 500, len: 300 }, at(400, 800)]);

    let rows: Vec<CopyRun> = (0..6).map(|row| at(row * 250, row * 100)).collect();
    let rect = Rect { src: DEVICE, dst: HOST, width: 100, rows: 6, src_pitch: 250, dst_pitch: 100 };
    assert_eq!(plan(PathChoice::Only(Path::Rects), &rows).rects, [rect]);
    assert_eq!(plan(PathChoice::Only(Path::Runs), &rows).runs, rows);
    // Too few rows, distances beyond the bound, and distances that run backwards are no rect.
    assert!(plan(PathChoice::Only(Path::Rects), &rows[..RECT_ROWS - 1]).rects.is_empty());
    let far: Vec<CopyRun> = (0..6).map(|row| at(row * 4001, row * 100)).collect();
    assert!(plan(PathChoice::Only(Path::Rects), &far).rects.is_empty());
    let back: Vec<CopyRun> = (0..6).map(|row| at(2000 - row * 200, row * 100)).collect();
    assert_eq!(plan(PathChoice::Only(Path::Rects), &back).runs.len(), 6);
}

#[test]
fn what_lies_outside_is_refused_before_anything_is_planned() {
    let mut ranges = DeviceRanges::default();
    ranges.add(DEVICE, 4096).unwrap();
    let pieces = Pieces { piece: AREA, registered: vec![true] };
    let chooser = Chooser::new(PathChoice::Auto, true, true, Curves::default());
    for (direction, src, dst) in [
        (Direction::DeviceToHost, DEVICE + 4000, HOST),
        (Direction::HostToDevice, HOST, DEVICE + 4000),
        (Direction::HostToDevice, HOST, DEVICE - 1),
        (Direction::DeviceToHost, HOST, DEVICE),
    ] {
        let planner = Planner { direction, ranges: &ranges, host: &pieces, chooser: &chooser, max_pitch: 4000 };
        assert!(Plan::default().build(&planner, &[CopyRun { src, dst, len: 97 }]).is_err(), "{direction:?} {src:#x}");
    }
}
