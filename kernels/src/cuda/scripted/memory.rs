//! What the driver knows of memory.

use std::collections::BTreeMap;

use crate::arena::Arena;

/// Added to an address of pinned memory for the address that the device uses, where it is not the same.
const DEVICE_SIDE: usize = 1 << 50;

#[derive(Debug, Default)]
pub(super) struct Memory {
    device_side: usize,
    /// Registered host memory: base and length.
    registered: BTreeMap<usize, usize>,
    pinned: BTreeMap<usize, Arena>,
    device: BTreeMap<usize, Arena>,
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
        (self.registered.len(), self.pinned.len(), self.device.len())
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

    pub fn add_device(&mut self, arena: Arena) -> usize {
        let address = arena.address();
        self.allocations.insert(address, arena.len());
        self.device.insert(address, arena);
        address
    }

    pub fn remove_device(&mut self, address: usize) -> Option<Arena> {
        self.allocations.remove(&address);
        self.device.remove(&address)
    }

    /// The allocation around an address.
    pub fn allocation(&self, address: usize) -> Option<(usize, usize)> {
        let (base, len) = self.allocations.range(..=address).next_back()?;
        (address - base < *len).then_some((*base, *len))
    }
}
