//! What the driver knows of memory.

use std::collections::BTreeMap;

use super::shared::{Handle, SharedMemory};
use crate::arena::Arena;

/// Added to an address of pinned memory for the address that the device uses, where it is not the same.
const DEVICE_SIDE: usize = 1 << 50;

#[derive(Debug, Default)]
pub(super) struct Memory {
    device_side: usize,
    /// Registered host memory: base and length.
    registered: BTreeMap<usize, usize>,
    pinned: BTreeMap<usize, Arena>,
    device: BTreeMap<usize, SharedMemory>,
    /// Other processes' allocations: whose, the mapping, and how often it was opened.
    opened: BTreeMap<(u32, u32), (SharedMemory, u32)>,
    /// Allocations on the device.
    allocations: BTreeMap<usize, usize>,
}

impl Memory {
    pub fn new(unified: bool) -> Self {
        Self { device_side: if unified { 0 } else { DEVICE_SIDE }, ..Self::default() }
    }

    /// The device's address of pinned memory.
    pub const fn as_device(&self, host: usize) -> u64 {
        (host + self.device_side) as u64
    }

    /// The host's address of pinned memory.
    pub const fn host_of(&self, device: u64) -> usize {
        (device as usize).wrapping_sub(self.device_side)
    }

    pub fn declare(&mut self, base: usize, len: usize) {
        self.allocations.insert(base, len);
    }

    pub fn left(&self) -> (usize, usize, usize) {
        (self.registered.len(), self.pinned.len(), self.device.len() + self.opened.len())
    }

    /// Whether the bytes cross the end of something that the map knows.
    fn crosses(map: &BTreeMap<usize, usize>, address: usize, len: usize) -> bool {
        let inside = map.range(..=address).next_back().filter(|(base, span)| address - **base < **span);
        match inside {
            Some((base, span)) => address - base + len > *span,
            None => map.range(address..address + len).next().is_some(),
        }
    }

    /// Whether a copy may touch these bytes in one call.
    pub fn is_whole(&self, address: usize, len: usize) -> bool {
        !Self::crosses(&self.registered, address, len) && !Self::crosses(&self.allocations, address, len)
    }

    /// Whether host memory is pinned.
    pub fn is_pinned(&self, address: usize) -> bool {
        let inside = |base: usize, len: usize| address - base < len;
        self.registered.range(..=address).next_back().is_some_and(|(base, len)| inside(*base, *len))
            || self.pinned.range(..=address).next_back().is_some_and(|(base, arena)| inside(*base, arena.len()))
    }

    /// The host address behind a device address. `None`: the device sees no such host memory.
    pub fn as_host(&self, address: usize) -> Option<usize> {
        if self.device_side == 0 {
            return Some(address);
        }
        if address < self.device_side {
            return (!self.is_pinned(address)).then_some(address);
        }
        let host = address - self.device_side;
        self.is_pinned(host).then_some(host)
    }

    pub fn register(&mut self, address: usize, len: usize) -> bool {
        let free = !Self::crosses(&self.registered, address, len) && !self.is_pinned(address);
        if free {
            self.registered.insert(address, len);
        }
        free
    }

    pub fn unregister(&mut self, address: usize) -> Option<usize> {
        self.registered.remove(&address)
    }

    pub fn add_pinned(&mut self, arena: Arena) -> usize {
        let address = arena.address();
        self.pinned.insert(address, arena);
        address
    }

    pub fn remove_pinned(&mut self, address: usize) -> Option<Arena> {
        self.pinned.remove(&address)
    }

    pub fn add_device(&mut self, memory: SharedMemory) -> usize {
        let address = memory.address();
        self.allocations.insert(address, memory.len());
        self.device.insert(address, memory);
        address
    }

    /// Bytes that are allocated on the device.
    pub fn device_bytes(&self) -> usize {
        self.device.values().map(SharedMemory::len).sum()
    }

    pub fn remove_device(&mut self, address: usize) -> Option<SharedMemory> {
        self.allocations.remove(&address);
        self.device.remove(&address)
    }

    /// The handle of an allocation.
    pub fn handle(&self, base: usize, len: usize) -> Handle {
        Handle::of_memory(base, len, self.device.get(&base))
    }

    /// Another process's allocation: the same mapping if it is open already.
    pub fn open(&mut self, handle: Handle) -> Option<usize> {
        if let Some((memory, times)) = self.opened.get_mut(&(handle.pid, handle.file)) {
            *times += 1;
            return Some(memory.address());
        }
        let memory = handle.map()?;
        let address = memory.address();
        self.allocations.insert(address, memory.len());
        self.opened.insert((handle.pid, handle.file), (memory, 1));
        Some(address)
    }

    /// Ends what `open` gave; the span if it is not mapped any more.
    pub fn close(&mut self, address: usize) -> Option<SharedMemory> {
        let (key, (_, times)) = self.opened.iter_mut().find(|(_, (memory, _))| memory.address() == address)?;
        *times -= 1;
        let (key, is_over) = (*key, *times == 0);
        if !is_over {
            return None;
        }
        self.allocations.remove(&address);
        self.opened.remove(&key).map(|(memory, _)| memory)
    }

    /// The allocation around an address.
    pub fn allocation(&self, address: usize) -> Option<(usize, usize)> {
        let (base, len) = self.allocations.range(..=address).next_back()?;
        (address - base < *len).then_some((*base, *len))
    }
}
