//! What to ask of the driver for a batch of runs: pure code, no call.
//!
//! Runs that follow each other in both memories become one. What is pinned is cut where registered pieces of host memory meet,
//! because a copy must not cross from one registration into the next. What is left is one run each, runs at constant distances,
//! or tiles for the kernel.

mod choice;
mod ranges;
mod tiles;

pub(crate) use choice::Chooser;
pub use choice::{Curves, Path, PathChoice, Point};
pub(crate) use ranges::DeviceRanges;
pub use tiles::Tile;
pub(crate) use tiles::{TILE_BYTES, cut};

use crate::engine::{CopyError, CopyRun, Direction};

/// `rows` runs of `width` bytes at constant distances (pitches), each at least `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// Address of the first byte to read.
    pub src: usize,
    /// Address of the first byte to write.
    pub dst: usize,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub rows: usize,
    /// From the start of a row to the start of the next, where it is read.
    pub src_pitch: usize,
    /// The same where it is written.
    pub dst_pitch: usize,
}

/// Rows from which on a two-dimensional copy is thought of.
const RECT_ROWS: usize = 4;

/// The part of some host memory that one driver call may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostSpan {
    /// Bytes from the address that was asked for, at least 1.
    pub len: usize,
    /// Where it is pinned.
    pub pinned: Option<Pinned>,
}

/// A registered piece of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Address of the piece: names it.
    pub piece: usize,
    /// To be added, wrapping, to a host address for the address that the device uses.
    pub to_device: usize,
}

/// Tells what of host memory is registered.
pub(crate) trait HostMap {
    /// About the bytes from `address` on, `len` of them at most.
    fn locate(&self, address: usize, len: usize) -> HostSpan;
}

/// The calls for a batch. Kept and used again, so that nothing is allocated for a batch like the last.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Runs whose host side is not registered.
    pub pageable: Vec<CopyRun>,
    /// Runs for copies of one dimension.
    pub runs: Vec<CopyRun>,
    /// Copies of two dimensions.
    pub rects: Vec<Rect>,
    /// Tiles for the kernel, with addresses as the device sees them.
    pub tiles: Vec<Tile>,
    /// Bytes of all runs.
    pub bytes: u64,
    /// Bytes by path: pageable, runs, rects, kernel.
    pub bytes_by: BytesBy,
}

/// Bytes of a plan by the way they go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BytesBy {
    pub pageable: u64,
    pub runs: u64,
    pub rects: u64,
    pub kernel: u64,
}

/// Runs seen and not yet in the plan: all of one length, at constant distances.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: CopyRun,
    last: CopyRun,
    rows: usize,
    pinned: Pinned,
    range: Option<usize>,
}

/// What a plan is made with.
pub(crate) struct Planner<'a> {
    pub direction: Direction,
    pub ranges: &'a DeviceRanges,
    pub host: &'a dyn HostMap,
    pub chooser: &'a Chooser,
    /// Largest pitch of a two-dimensional copy.
    pub max_pitch: usize,
}

impl Plan {
    /// Plans a batch in place of what was planned before. `Invalid`: a run that no engine can carry out, or not inside the engine's
    /// tensors.
    pub fn build(&mut self, planner: &Planner<'_>, runs: &[CopyRun]) -> Result<(), CopyError> {
        self.clear();
        let mut group = None;
        let mut pending: Option<(CopyRun, Option<usize>)> = None;
        for run in runs {
            run.check()?;
            if run.len == 0 {
                continue;
            }
            let device = match planner.direction {
                Direction::DeviceToHost => run.src,
                Direction::HostToDevice => run.dst,
            };
            let range = planner.ranges.find(device, run.len)?;
            match &mut pending {
                Some((last, before))
                    if range.is_some()
                        && *before == range
                        && last.src + last.len == run.src
                        && last.dst + last.len == run.dst =>
                {
                    last.len += run.len;
                }
                _ => {
                    if let Some((last, range)) = pending.replace((*run, range)) {
                        self.split(planner, last, range, &mut group);
                    }
                }
            }
        }
        if let Some((last, range)) = pending {
            self.split(planner, last, range, &mut group);
        }
        self.end_group(planner, group);
        Ok(())
    }

    fn clear(&mut self) {
        self.pageable.clear();
        self.runs.clear();
        self.rects.clear();
        self.tiles.clear();
        (self.bytes, self.bytes_by) = (0, BytesBy::default());
    }

    /// Cuts a run where registrations begin and end.
    fn split(&mut self, planner: &Planner<'_>, run: CopyRun, range: Option<usize>, group: &mut Option<Group>) {
        self.bytes += run.len as u64;
        let mut done = 0;
        while done < run.len {
            let rest = CopyRun { src: run.src + done, dst: run.dst + done, len: run.len - done };
            let host = match planner.direction {
                Direction::DeviceToHost => rest.dst,
                Direction::HostToDevice => rest.src,
            };
            let span = planner.host.locate(host, rest.len);
            // At least one byte a turn, whatever the map says: the loop ends.
            let part = CopyRun { len: span.len.clamp(1, rest.len), ..rest };
            done += part.len;
            match span.pinned {
                None => {
                    self.bytes_by.pageable += part.len as u64;
                    self.pageable.push(part);
                }
                Some(pinned) => self.join(planner, part, pinned, range, group),
            }
        }
    }

    /// Adds a pinned run to the group if it goes on at the same distances; ends the group else.
    fn join(
        &mut self,
        planner: &Planner<'_>,
        run: CopyRun,
        pinned: Pinned,
        range: Option<usize>,
        group: &mut Option<Group>,
    ) {
        if let Some(open) = group {
            let alike = open.range.is_some()
                && open.range == range
                && open.pinned == pinned
                && open.first.len == run.len
                && fits(open, &run, planner.max_pitch);
            if alike {
                open.last = run;
                open.rows += 1;
                return;
            }
        }
        let new = Group { first: run, last: run, rows: 1, pinned, range };
        if let Some(open) = group.replace(new) {
            self.end_group(planner, Some(open));
        }
    }

    fn end_group(&mut self, planner: &Planner<'_>, group: Option<Group>) {
        let Some(group) = group else { return };
        let CopyRun { src, dst, len } = group.first;
        let pitches = group.rows.checked_sub(1).filter(|steps| *steps > 0);
        let (src_pitch, dst_pitch) =
            pitches.map_or((0, 0), |steps| ((group.last.src - src) / steps, (group.last.dst - dst) / steps));
        let path = if group.rows >= RECT_ROWS {
            planner.chooser.rect(planner.direction, len)
        } else {
            planner.chooser.run(planner.direction, len)
        };
        let bytes = (len as u64) * group.rows as u64;
        if path == Path::Rects && group.rows >= RECT_ROWS {
            self.rects.push(Rect { src, dst, width: len, rows: group.rows, src_pitch, dst_pitch });
            self.bytes_by.rects += bytes;
            return;
        }
        for row in 0..group.rows {
            let run = CopyRun { src: src + row * src_pitch, dst: dst + row * dst_pitch, len };
            if path == Path::Kernel {
                cut(as_device_sees(planner.direction, run, group.pinned), &mut self.tiles);
            } else {
                self.runs.push(run);
            }
        }
        match path {
            Path::Kernel => self.bytes_by.kernel += bytes,
            _ => self.bytes_by.runs += bytes,
        }
    }
}

/// Whether `run` is the next row of the group.
fn fits(group: &Group, run: &CopyRun, max_pitch: usize) -> bool {
    let step = |from: usize, to: usize| to.checked_sub(from).filter(|step| *step >= run.len && *step <= max_pitch);
    let (Some(src), Some(dst)) = (step(group.last.src, run.src), step(group.last.dst, run.dst)) else { return false };
    group.rows == 1
        || (src == (group.last.src - group.first.src) / (group.rows - 1)
            && dst == (group.last.dst - group.first.dst) / (group.rows - 1))
}

fn as_device_sees(direction: Direction, run: CopyRun, pinned: Pinned) -> CopyRun {
    match direction {
        Direction::DeviceToHost => CopyRun { dst: run.dst.wrapping_add(pinned.to_device), ..run },
        Direction::HostToDevice => CopyRun { src: run.src.wrapping_add(pinned.to_device), ..run },
    }
}

#[cfg(test)]
mod tests;
