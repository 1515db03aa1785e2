//! Asking for CUDA where it is not.

use terrace_kernels::cuda::{Cuda, DeviceId};
use terrace_kernels::{CopyEngineKind, CopyError};

#[test]
fn without_a_driver_the_library_is_named() {
    match Cuda::load() {
        Ok(cuda) => {
            println!("NOT RUN: a CUDA driver is here ({:?}); tests/gpu/run is for this machine", cuda.devices())
        }
        Err(error) => {
            println!("{error}");
            let again = CopyEngineKind::Cuda { device: DeviceId::Ordinal(3) }.build().err();
            assert_eq!(again.as_ref(), Some(&error));
            match error {
                CopyError::MissingLibrary { library, reason } => {
                    assert!(library.starts_with("libcuda.so.1 ") && reason.contains("libcuda"), "{library}: {reason}");
                }
                // A stub, or a driver without a device.
                CopyError::Unsupported(text) => assert!(text.contains("CUDA driver"), "{text}"),
                other => panic!("{other}"),
            }
        }
    }
}
