//! What streams hold, and its execution.

use super::super::driver::code;
use super::super::plan::{Rect, Tile};
use super::State;
use crate::engine::StreamHandle;

/// An event: records are numbered, so that a wait knows which one it is for.
#[derive(Debug, Default)]
pub(super) struct Event {
    /// Number of the latest record; 0: never recorded.
    pub latest: u64,
    /// Number of the latest record that is done.
    pub done: u64,
    /// Who holds it: its maker, and those who opened its handle. At 0 it is only kept for the records and waits that are queued.
    pub holders: u32,
}

/// A piece of work.
#[derive(Debug)]
pub(super) enum Op {
    Copy {
        src: usize,
        dst: usize,
        len: usize,
    },
    /// Bytes that were read when the copy was submitted.
    Write {
        bytes: Vec<u8>,
        dst: usize,
    },
    Rect(Rect),
    Gather {
        table: usize,
        count: usize,
    },
    Record {
        event: u64,
        number: u64,
    },
    Wait {
        event: u64,
        number: u64,
    },
    Fill {
        address: usize,
        len: usize,
        value: u8,
    },
}

impl State {
    pub fn push(&mut self, stream: StreamHandle, op: Op) {
        match self.streams.get_mut(&stream.0) {
            Some(queue) => queue.push_back(op),
            None => self.violations.push(format!("work for stream {}, which is not there", stream.0)),
        }
    }

    fn can_run(&self, op: &Op) -> bool {
        match op {
            Op::Wait { event, number } => self.events.get(event).is_none_or(|event| event.done >= *number),
            _ => true,
        }
    }

    /// Executes one piece of work of a stream that the seed picks. `false`: nothing can go on.
    pub fn go_on(&mut self) -> bool {
        if self.held_all {
            return false;
        }
        let ready: Vec<u64> = self
            .streams
            .iter()
            .filter(|(id, queue)| !self.held.contains(id) && queue.front().is_some_and(|op| self.can_run(op)))
            .map(|(id, _)| *id)
            .collect();
        let picked = self.random(ready.len());
        let Some(stream) = ready.get(picked) else { return false };
        let Some(op) = self.streams.get_mut(stream).and_then(std::collections::VecDeque::pop_front) else {
            return false;
        };
        self.execute(op);
        true
    }

    fn execute(&mut self, op: Op) {
        match op {
            Op::Copy { src, dst, len } => copy(src, dst, len),
            Op::Write { bytes, dst } => copy(bytes.as_ptr() as usize, dst, bytes.len()),
            Op::Rect(rect) => {
                for row in 0..rect.rows {
                    copy(rect.src + row * rect.src_pitch, rect.dst + row * rect.dst_pitch, rect.width);
                }
            }
            Op::Gather { table, count } => self.gather(table, count),
            Op::Record { event, number } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.done = number;
                }
                self.forget(event);
            }
            Op::Wait { event, .. } => self.forget(event),
            // SAFETY: `Driver::fill`'s caller promised that the memory is writable.
            Op::Fill { address, len, value } => unsafe { std::ptr::write_bytes(address as *mut u8, value, len) },
        }
    }

    /// The kernel: tiles in any order.
    fn gather(&mut self, table: usize, count: usize) {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            let other = self.random(at + 1);
            order.swap(at, other);
        }
        for at in order {
            // SAFETY: the table was in pinned memory when the kernel was launched, and giving it back is a violation.
            let tile = unsafe { ((table + at * size_of::<Tile>()) as *const Tile).read() };
            let side = |address: u64| self.memory.as_host(address as usize);
            let ends = |address: u64| self.memory.as_host((address + u64::from(tile.len) - 1) as usize);
            match (side(tile.src), side(tile.dst), ends(tile.src), ends(tile.dst)) {
                (Some(src), Some(dst), Some(_), Some(_)) => copy(src, dst, tile.len as usize),
                _ => {
                    self.violations.push(format!("the kernel was given memory that it cannot see: {tile:?}"));
                    self.lose(code::ILLEGAL_ADDRESS);
                    return;
                }
            }
        }
    }

    /// Forgets an event that was given back once nothing names it.
    pub fn forget(&mut self, id: u64) {
        let named = |op: &Op| matches!(op, Op::Record { event, .. } | Op::Wait { event, .. } if *event == id);
        if self.events.get(&id).is_some_and(|event| event.holders == 0) && !self.streams.values().flatten().any(named) {
            self.events.remove(&id);
        }
    }

    /// Whether work that is queued touches these bytes.
    pub fn uses(&self, base: usize, bytes: usize) -> bool {
        let hit = |address: usize, len: usize| address < base + bytes && base < address.saturating_add(len);
        let extent = |pitch: usize, rect: &Rect| pitch * (rect.rows - 1) + rect.width;
        self.streams.values().flatten().any(|op| match op {
            Op::Copy { src, dst, len } => hit(*src, *len) || hit(*dst, *len),
            Op::Write { bytes, dst } => hit(*dst, bytes.len()),
            Op::Rect(rect) => {
                hit(rect.src, extent(rect.src_pitch, rect)) || hit(rect.dst, extent(rect.dst_pitch, rect))
            }
            Op::Gather { table, count } => {
                hit(*table, count * size_of::<Tile>())
                    || (0..*count).any(|at| {
                        // SAFETY: as in `gather`.
                        let tile = unsafe { ((table + at * size_of::<Tile>()) as *const Tile).read() };
                        let len = tile.len as usize;
                        [tile.src, tile.dst]
                            .iter()
                            .any(|address| self.memory.as_host(*address as usize).is_some_and(|host| hit(host, len)))
                    })
            }
            Op::Fill { address, len, .. } => hit(*address, *len),
            Op::Record { .. } | Op::Wait { .. } => false,
        })
    }
}

fn copy(src: usize, dst: usize, len: usize) {
    // SAFETY: the caller of the submitting call promised that both are valid until the stream has done it.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len) };
}
