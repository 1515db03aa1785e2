//! Where devices come from: the driver of the machine, or what a test gives.

use std::fmt::Debug;
use std::sync::Arc;

use terrace_config::{CopyChoice, CopyConfig};
use terrace_kernels::CopyError;
use terrace_kernels::cuda::{Cuda, DeviceId, Driver};

use crate::device::{admits, load_cuda};

/// Finds the devices on which a daemon copies for workers.
pub trait DeviceSource: Debug + Send + Sync {
    /// Opens the device with this UUID. May take hundreds of milliseconds; called by threads that serve nobody else.
    ///
    /// # Errors
    /// [`CopyError::Invalid`]: there is no such device, or it may not be used.
    fn device(&self, uuid: [u8; 16]) -> Result<Arc<dyn Driver>, CopyError>;
}

/// The GPUs of this machine that the configuration lets be used.
#[derive(Debug)]
struct Gpus {
    cuda: Cuda,
    copy: CopyConfig,
}

impl DeviceSource for Gpus {
    fn device(&self, uuid: [u8; 16]) -> Result<Arc<dyn Driver>, CopyError> {
        let device = self.cuda.device(DeviceId::Uuid(uuid))?;
        if !admits(&self.copy, terrace_kernels::cuda::Driver::facts(&*device)) {
            return Err(CopyError::Invalid("[copy] devices does not name this GPU".to_owned()));
        }
        Ok(device)
    }
}

/// The devices of a daemon: `given` ones, else what the configuration finds. `None`: copies are not offered.
///
/// # Errors
/// With `engine = "cuda"`: as [`load_cuda`]; [`CopyError::Invalid`] if no device may be used.
pub(in crate::server) fn source(
    copy: &CopyConfig,
    given: Option<Arc<dyn DeviceSource>>,
) -> Result<Option<Arc<dyn DeviceSource>>, CopyError> {
    if copy.engine == CopyChoice::Host {
        return Ok(None);
    }
    if given.is_some() {
        return Ok(given);
    }
    let Some(cuda) = load_cuda(copy)? else { return Ok(None) };
    let devices = cuda.devices()?;
    if devices.iter().any(|device| admits(copy, device)) {
        return Ok(Some(Arc::new(Gpus { cuda, copy: copy.clone() })));
    }
    let text = format!("[copy] devices names none of the {} GPUs of this machine", devices.len());
    if copy.engine == CopyChoice::Cuda {
        return Err(CopyError::Invalid(text));
    }
    tracing::info!("no GPU is used: {text}");
    Ok(None)
}
