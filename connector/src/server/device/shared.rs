//! What the copy threads of a pool share: devices that are open, and the region's registration.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use terrace_config::CopyConfig;
use terrace_kernels::CopyError;
use terrace_kernels::cuda::{CudaOptions, Driver, PinOptions, RegionPins};
use terrace_kernels::layout::SlotTable;
use terrace_primary::{Region, SlotId};

use super::source::DeviceSource;
use crate::device::{cuda_options, pin_region};

/// Shared by the threads of a pool; lives as long as the pool or the last of them.
#[derive(Debug)]
pub(in crate::server) struct DeviceShare {
    source: Arc<dyn DeviceSource>,
    region: Arc<Region>,
    block_bytes: u32,
    blocks_per_chunk: u32,
    engine: CudaOptions,
    pin: PinOptions,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// As many as the source has, at most.
    drivers: BTreeMap<[u8; 16], Arc<dyn Driver>>,
    /// Begun by the first worker that attaches. A registration holds for all devices of a process.
    pins: Option<Arc<RegionPins>>,
}

impl DeviceShare {
    pub fn new(
        source: Arc<dyn DeviceSource>,
        region: Arc<Region>,
        blocks_per_chunk: u32,
        block_bytes: u32,
        copy: &CopyConfig,
    ) -> Self {
        let (engine, pin) = cuda_options(copy);
        Self { source, region, block_bytes, blocks_per_chunk, engine, pin, open: Mutex::default() }
    }

    /// The device, and the region registered with it as far as it is. Waits for another thread that opens one.
    pub fn open(&self, uuid: [u8; 16]) -> Result<(Arc<dyn Driver>, Arc<RegionPins>), CopyError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = match open.drivers.get(&uuid) {
            Some(driver) => Arc::clone(driver),
            None => {
                let driver = self.source.device(uuid)?;
                open.drivers.insert(uuid, Arc::clone(&driver));
                driver
            }
        };
        let pins = match &open.pins {
            Some(pins) => Arc::clone(pins),
            None => Arc::clone(open.pins.insert(Arc::new(pin_region(&driver, &self.region, self.pin)?))),
        };
        Ok((driver, pins))
    }

    pub const fn engine(&self) -> &CudaOptions {
        &self.engine
    }

    /// Payload of a slot.
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub const fn blocks_per_chunk(&self) -> u32 {
        self.blocks_per_chunk
    }

    /// Where the slots are.
    pub fn slots(&self) -> SlotTable {
        SlotTable {
            base: self.region.slot_ptr(SlotId(0)).map_or(0, |slot| slot.as_ptr().addr()),
            stride: self.region.slot_stride() as usize,
            slots: self.region.slots(),
        }
    }
}
