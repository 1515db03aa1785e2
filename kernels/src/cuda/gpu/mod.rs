//! Real GPUs. The only place that names the driver's functions.
#![expect(unsafe_code, reason = "the driver's C interface")]

mod calls;
mod symbols;

use std::ffi::{c_char, c_int};
use std::str::FromStr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::driver::{DeviceFacts, DriverError};
use crate::engine::CopyError;
use symbols::{Batch, Functions};

/// The loaded driver.
#[derive(Clone, Debug)]
pub struct Cuda {
    functions: Arc<Functions>,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceId {
    /// Its number in this process.
    Ordinal(u32),
    /// Its UUID, the same in every process.
    Uuid([u8; 16]),
}

impl FromStr for DeviceId {
    type Err = CopyError;

    /// `0`, or `GPU-` and 32 hexadecimal digits with or without dashes.
    fn from_str(text: &str) -> Result<Self, CopyError> {
        if let Ok(ordinal) = text.parse() {
            return Ok(Self::Ordinal(ordinal));
        }
        let refused =
            || CopyError::Invalid(format!("{text:?} names no device: give a number such as 0, or GPU-<uuid>"));
        let digits: Vec<u8> =
            text.strip_prefix("GPU-").ok_or_else(refused)?.bytes().filter(|byte| *byte != b'-').collect();
        let mut uuid = [0; 16];
        if digits.len() != 32 {
            return Err(refused());
        }
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            let pair =
                std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(refused)?;
        }
        Ok(Self::Uuid(uuid))
    }
}

impl Cuda {
    /// Loads the driver. `MissingLibrary`: there is none. `Unsupported`: there is, and it does not work (no device, a stub).
    pub fn load() -> Result<Self, CopyError> {
        let functions = Functions::load()?;
        // SAFETY: the first call, as the driver asks for.
        let started = unsafe { (functions.init)(0) };
        if started != 0 {
            return Err(CopyError::Unsupported(format!(
                "the CUDA driver does not start: {} ({started})",
                functions.name(started)
            )));
        }
        Ok(Self { functions: Arc::new(functions) })
    }

    /// All devices of this process.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>, CopyError> {
        let mut count = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGetCount", unsafe { (self.functions.device_count)(&raw mut count) })?;
        (0..count).map(|ordinal| Ok(self.facts(ordinal)?.1)).collect()
    }

    /// Opens a device: retains its primary context, which is the one that PyTorch and the CUDA runtime use. `Invalid`: there is none
    /// of this name.
    pub fn device(&self, id: DeviceId) -> Result<Arc<Gpu>, CopyError> {
        let devices = self.devices()?;
        let found = devices.into_iter().find(|facts| match id {
            DeviceId::Ordinal(ordinal) => facts.ordinal == ordinal,
            DeviceId::Uuid(uuid) => facts.uuid == uuid,
        });
        let facts = found.ok_or_else(|| CopyError::Invalid(format!("this process sees no CUDA device {id:?}")))?;
        let (device, facts) = self.facts(facts.ordinal as c_int)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.functions.context_retain)(&raw mut context, device) })?;
        let batch = if facts.has_batch { self.functions.batch() } else { None };
        Ok(Arc::new(Gpu { cuda: self.clone(), device, context: context as usize, batch, facts }))
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), DriverError> {
        if result == 0 { Ok(()) } else { Err(DriverError { call, code: result, name: self.functions.name(result) }) }
    }

    fn facts(&self, ordinal: c_int) -> Result<(sys::CUdevice, DeviceFacts), DriverError> {
        use sys::CUdevice_attribute as Attribute;
        let functions = &*self.functions;
        let mut device = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGet", unsafe { (functions.device_get)(&raw mut device, ordinal) })?;
        let attribute = |attribute: Attribute| {
            let mut value = 0;
            // SAFETY: writes one number.
            let result = unsafe { (functions.device_attribute)(&raw mut value, attribute as c_int, device) };
            self.check("cuDeviceGetAttribute", result).map(|()| u32::try_from(value).unwrap_or(0))
        };
        let text = |call, get: unsafe extern "C" fn(*mut c_char, c_int, sys::CUdevice) -> c_int| {
            let mut text = [0_u8; 256];
            // SAFETY: writes as many bytes at most as it is told.
            self.check(call, unsafe { get(text.as_mut_ptr().cast(), text.len() as c_int, device) })?;
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            Ok::<_, DriverError>(String::from_utf8_lossy(text.get(..end).unwrap_or_default()).into_owned())
        };
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        self.check("cuDeviceGetUuid", unsafe { (functions.device_uuid)(&raw mut uuid, device) })?;
        let mut version = 0;
        // SAFETY: writes one number.
        self.check("cuDriverGetVersion", unsafe { (functions.driver_version)(&raw mut version) })?;
        let facts = DeviceFacts {
            ordinal: ordinal.unsigned_abs(),
            uuid: uuid.bytes.map(|byte| byte as u8),
            bus_id: text("cuDeviceGetPCIBusId", functions.device_bus_id)?,
            name: text("cuDeviceGetName", functions.device_name)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            driver_version: version.unsigned_abs(),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
            max_pitch: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)? as usize,
            has_batch: functions.batch().is_some(),
        };
        Ok((device, facts))
    }
}

/// A device, with its primary context. [`Driver`](super::Driver) has its calls.
#[derive(Debug)]
pub struct Gpu {
    cuda: Cuda,
    device: sys::CUdevice,
    /// A `CUcontext`. As a number: handles of the driver may go from thread to thread.
    context: usize,
    batch: Option<Batch>,
    facts: DeviceFacts,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained by `Cuda::device`, once. All that was made in the context holds a reference to this device.
        let released = unsafe { (self.cuda.functions.context_release)(self.device) };
        if let Err(error) = self.cuda.check("cuDevicePrimaryCtxRelease", released) {
            tracing::warn!("{}", CopyError::from(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_number_or_uuid() {
        let uuid = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 0xff];
        let facts = DeviceFacts { uuid, ..DeviceFacts::default() };
        assert_eq!(facts.uuid_text(), "GPU-12345678-9abc-def0-0102-0304050607ff");
        assert_eq!(facts.uuid_text().parse(), Ok(DeviceId::Uuid(uuid)));
        assert_eq!("3".parse(), Ok(DeviceId::Ordinal(3)));
        for bad in [
            "",
            "-1",
            "GPU-",
            "GPU-12",
            "gpu-123456789abcdef001020304050607ff",
            "GPU-+1345678-9abc-def0-0102-0304050607ff",
            "GPU-é345678-9abc-def0-0102-0304050607f",
        ] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad}");
        }
    }
}
