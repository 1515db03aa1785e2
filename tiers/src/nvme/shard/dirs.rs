//! Which directories of the tier's own namespace are known to exist, so that each is made once.

use crate::nvme::device::{Device, DeviceError};
use crate::nvme::name::{FAN_OUT, QUARANTINE, TMP, fan_out_dir, namespace_dir};
use crate::nvme::path::RelPath;

const WORDS: usize = FAN_OUT as usize / 64;

/// A bit for each fan-out directory.
#[derive(Debug)]
pub(super) struct KnownDirs {
    namespace: [u8; 32],
    namespace_made: bool,
    made: [u64; WORDS],
}

impl KnownDirs {
    pub(super) const fn new(namespace: [u8; 32]) -> Self {
        Self { namespace, namespace_made: false, made: [0; WORDS] }
    }

    /// Makes the directory if it is not known to exist.
    pub(super) fn ensure<D: Device>(&mut self, device: &mut D, fan_out: u16) -> Result<(), DeviceError> {
        let (word, bit) = (usize::from(fan_out) / 64 % WORDS, 1 << (fan_out % 64));
        if self.made[word] & bit != 0 {
            return Ok(());
        }
        if !self.namespace_made {
            // All that a store may need, in case somebody emptied the root.
            for name in [TMP, QUARANTINE].into_iter().filter_map(RelPath::new) {
                device.make_dir(&name)?;
            }
            device.make_dir(&namespace_dir(&self.namespace))?;
            self.namespace_made = true;
        }
        match device.make_dir(&fan_out_dir(&self.namespace, fan_out)) {
            Ok(()) => self.made[word] |= bit,
            Err(error) => {
                self.forget();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Somebody removed directories behind our back: look again.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.namespace);
    }
}
