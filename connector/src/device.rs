//! GPUs as `[copy]` of the configuration asks for them: the options of engines, which devices may be used, the region's registration.
#![expect(unsafe_code, reason = "registering the region with a driver")]

use std::any::Any;
use std::sync::Arc;

use terrace_config::{CopyChoice, CopyConfig, CopyPath};
use terrace_kernels::CopyError;
use terrace_kernels::cuda::{
    Cuda, CudaOptions, DeviceFacts, DeviceId, Driver, Path, PathChoice, PinOptions, RegionPins,
};
use terrace_primary::Region;

/// What the engines of GPUs, and the registration of the region, are built with.
pub fn cuda_options(copy: &CopyConfig) -> (CudaOptions, PinOptions) {
    let defaults = CudaOptions::default();
    let path = match copy.path {
        CopyPath::Auto => PathChoice::Auto,
        CopyPath::Batch => PathChoice::Only(Path::Batch),
        CopyPath::Runs => PathChoice::Only(Path::Runs),
        CopyPath::Rects => PathChoice::Only(Path::Rects),
        CopyPath::Kernel => PathChoice::Only(Path::Kernel),
    };
    let engine = CudaOptions {
        queue_entries: copy.queue_entries as usize,
        path,
        kernel_blocks: copy.kernel_blocks,
        nvrtc: copy.nvrtc.clone(),
        cache_dir: copy.cache_dir.clone().or_else(|| defaults.cache_dir.clone()),
        ..defaults
    };
    let pins = PinOptions {
        piece_bytes: usize::try_from(copy.piece_bytes).unwrap_or(usize::MAX),
        threads: copy.register_threads as usize,
    };
    (engine, pins)
}

/// The driver, if the configuration wants it. `None`: copies are the host's, because it says so or, with `engine = "auto"`, because the
/// driver does not load, which the log tells.
///
/// # Errors
/// With `engine = "cuda"`: [`CopyError::MissingLibrary`] where there is no driver, [`CopyError::Unsupported`] where it does not work.
pub fn load_cuda(copy: &CopyConfig) -> Result<Option<Cuda>, CopyError> {
    if copy.engine == CopyChoice::Host {
        return Ok(None);
    }
    match Cuda::load() {
        Ok(cuda) => Ok(Some(cuda)),
        Err(error) if copy.engine == CopyChoice::Cuda => Err(error),
        Err(error) => {
            tracing::info!("no GPU is used: {error}");
            Ok(None)
        }
    }
}

/// Whether the configuration lets a device be used.
pub fn admits(copy: &CopyConfig, device: &DeviceFacts) -> bool {
    let named = |name: &String| match name.parse() {
        Ok(DeviceId::Ordinal(ordinal)) => device.ordinal == ordinal,
        Ok(DeviceId::Uuid(uuid)) => device.uuid == uuid,
        Err(_) => false,
    };
    copy.devices.is_empty() || copy.devices.iter().any(named)
}

/// The device for copies of this process: the first that the configuration names, or device 0. `None`: copies are the host's.
///
/// # Errors
/// As [`load_cuda`]; [`CopyError::Invalid`] if there is no such device.
pub fn open_device(copy: &CopyConfig) -> Result<Option<Arc<dyn Driver>>, CopyError> {
    let Some(cuda) = load_cuda(copy)? else { return Ok(None) };
    let id = copy.devices.first().map_or(Ok(DeviceId::Ordinal(0)), |name| name.parse())?;
    Ok(Some(cuda.device(id)?))
}

/// Begins to register a region with a driver, for all devices of this process, and returns at once. Registering backs pages that were never
/// touched, which is slow: a region that is backed behind is registered when it is ready. The registration keeps the region.
///
/// # Errors
/// [`CopyError::Invalid`]: a region without memory.
pub fn pin_region(
    driver: &Arc<dyn Driver>,
    region: &Arc<Region>,
    options: PinOptions,
) -> Result<RegionPins, CopyError> {
    let Some((base, len)) = region.parts() else {
        return Err(CopyError::Invalid("a region without memory cannot be registered".to_owned()));
    };
    let keep: Arc<dyn Any + Send + Sync> = Arc::clone(region) as _;
    // SAFETY: a region stays mapped, readable and writable, as long as it lives, and the registration holds it.
    unsafe { RegionPins::start(driver, base.as_ptr().addr(), len, keep, options) }
}

#[cfg(test)]
mod tests {
    use terrace_kernels::cuda::scripted::{Script, Scripted};
    use terrace_primary::RegionOptions;

    use super::*;

    #[test]
    fn every_key_reaches_the_engine() {
        let copy = CopyConfig {
            path: CopyPath::Rects,
            kernel_blocks: 7,
            queue_entries: 8,
            piece_bytes: 4 << 20,
            register_threads: 9,
            nvrtc: Some("/n".into()),
            cache_dir: Some("/c".into()),
            ..CopyConfig::default()
        };
        let (engine, pins) = cuda_options(&copy);
        assert_eq!((engine.path, engine.kernel_blocks, engine.queue_entries), (PathChoice::Only(Path::Rects), 7, 8));
        assert_eq!((engine.nvrtc, engine.cache_dir), (Some("/n".into()), Some("/c".into())));
        assert_eq!(pins, PinOptions { piece_bytes: 4 << 20, threads: 9 });

        let (engine, pins) = cuda_options(&CopyConfig::default());
        let own = CudaOptions::default();
        assert_eq!(
            (engine.path, engine.kernel_blocks, engine.queue_entries),
            (own.path, own.kernel_blocks, own.queue_entries)
        );
        assert_eq!((engine.nvrtc, engine.cache_dir), (own.nvrtc, own.cache_dir));
        assert_eq!(pins, PinOptions::default());
    }

    #[test]
    fn devices_are_admitted_by_number_or_uuid() {
        let facts = DeviceFacts { ordinal: 3, uuid: [0xab; 16], ..DeviceFacts::default() };
        let admitted = |devices: &[&str]| {
            let devices = devices.iter().map(|name| (*name).to_owned()).collect();
            admits(&CopyConfig { devices, ..CopyConfig::default() }, &facts)
        };
        assert!(admitted(&[]) && admitted(&["0", "3"]) && admitted(&[&facts.uuid_text()]));
        assert!(!admitted(&["0"]) && !admitted(&["GPU-00000000000000000000000000000003"]));
    }

    #[test]
    fn without_a_driver_auto_is_the_host_and_cuda_an_error() {
        let with = |engine| CopyConfig { engine, ..CopyConfig::default() };
        assert!(matches!(open_device(&with(CopyChoice::Host)), Ok(None)));
        if let Err(missing) = Cuda::load() {
            assert!(matches!(open_device(&with(CopyChoice::Auto)), Ok(None)));
            assert_eq!(open_device(&with(CopyChoice::Cuda)).err(), Some(missing));
        } else {
            println!("NOT RUN: a CUDA driver is here");
        }
    }

    #[test]
    fn a_region_is_registered_whole_and_kept() {
        let device = Scripted::new(Script { seed: 1, has_batch: true, has_kernel: true, unified: false });
        let driver: Arc<dyn Driver> = Arc::clone(&device) as _;
        let options = RegionOptions {
            slots: 5,
            slot_stride: 1 << 20,
            block_bytes: 1 << 20,
            huge_pages: terrace_config::Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        };
        let region = Region::create(&options, &|_, _| {}).expect("a region");
        let mut pins = pin_region(&driver, &region, PinOptions { piece_bytes: 2 << 20, threads: 2 }).expect("pins");
        pins.wait();
        let whole = region.parts().expect("memory").1;
        assert_eq!((pins.progress().registered, pins.progress().bytes), (whole.div_ceil(2 << 20), whole as u64));
        assert_eq!(Arc::strong_count(&region), 2);
        drop(pins);
        assert_eq!((Arc::strong_count(&region), device.left()), (1, [0; 5]));
        assert!(pin_region(&driver, &Region::null(1, 4096, 4096), PinOptions::default()).is_err());
    }
}
