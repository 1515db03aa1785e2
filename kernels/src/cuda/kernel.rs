//! The gather kernel, ready for a device: from the cache, compiled now, or as it is built in.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::driver::{DeviceFacts, Driver, KernelHandle};
use super::nvrtc::{Nvrtc, Target};
use super::options::CudaOptions;
use crate::engine::CopyError;

/// The source.
pub const SOURCE: &str = include_str!("gather.cu");
/// The source as PTX for compute capability 8.0 and later, by an early release of NVRTC 12 so that early drivers take it:
/// for machines without NVRTC. `tests/nvrtc/run --write` makes it, and without `--write` checks that it is the source's.
pub const BUILT_IN_PTX: &str = include_str!("gather.ptx");
/// Name of the kernel.
pub const NAME: &std::ffi::CStr = c"terrace_gather";
/// Threads of a block.
pub const BLOCK_THREADS: u32 = 512;

/// Bytes of a file in the cache at most.
const MOST_BYTES: u64 = 16 << 20;
const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// The loaded kernel. Dropped when no stream runs it.
#[derive(Debug)]
pub(super) struct Kernel {
    driver: Arc<dyn Driver>,
    pub handle: KernelHandle,
}

impl Drop for Kernel {
    #[expect(unsafe_code, reason = "giving a handle back")]
    fn drop(&mut self) {
        // SAFETY: loaded below; the engine that owns it has drained its streams.
        unsafe { self.driver.unload_kernel(self.handle) };
    }
}

/// Loads the kernel. `None`, and a line in the log: this device cannot have it.
pub(super) fn load(driver: &Arc<dyn Driver>, options: &CudaOptions) -> Option<Kernel> {
    let facts = driver.facts();
    let load = |image: &[u8], from: &str| match driver.load_kernel(image) {
        Ok(handle) => {
            tracing::info!("gather kernel {from}, for {}", facts.name);
            Some(Kernel { driver: Arc::clone(driver), handle })
        }
        Err(error) => {
            tracing::warn!("gather kernel {from}: {}", CopyError::from(error));
            None
        }
    };
    let cache = options.cache_dir.as_deref().map(|dir| Cache { dir, key: key(facts) });
    if let Some(image) = cache.as_ref().and_then(Cache::read)
        && let Some(kernel) = load(&image, "from the cache")
    {
        return Some(kernel);
    }
    let (major, minor) = facts.capability;
    let compiled = Nvrtc::open(options.nvrtc.as_deref())
        .and_then(|nvrtc| Ok((nvrtc.compile(SOURCE, Target::Machine(major, minor))?, nvrtc.version())));
    match compiled {
        Ok((image, (release, minor))) => {
            if let Some(kernel) = load(&image, &format!("compiled by NVRTC {release}.{minor}")) {
                if let Some(Err(error)) = cache.as_ref().map(|cache| cache.write(&image)) {
                    tracing::warn!("the gather kernel is not kept: {error}");
                }
                return Some(kernel);
            }
        }
        Err(error) => tracing::info!("gather kernel: {error}"),
    }
    let mut image = BUILT_IN_PTX.as_bytes().to_vec();
    image.push(0);
    load(&image, "as built in")
}

/// Names the machine code for a device: another source, device or driver is another name.
fn key(facts: &DeviceFacts) -> [u8; DIGEST_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(SOURCE.as_bytes());
    for number in [facts.capability.0, facts.capability.1, facts.driver_version] {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// A directory with a file per key: digest of key and image, then the image. Machine code of others is not run: the directory must be
/// this user's, and writable by nobody else.
struct Cache<'a> {
    dir: &'a Path,
    key: [u8; DIGEST_BYTES],
}

impl Cache<'_> {
    fn path(&self) -> PathBuf {
        let name: String = self.key.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        self.dir.join(format!("gather-{name}.cubin"))
    }

    fn digest(&self, image: &[u8]) -> [u8; DIGEST_BYTES] {
        *blake3::Hasher::new_keyed(&self.key).update(image).finalize().as_bytes()
    }

    fn is_ours(&self) -> bool {
        let ours = |meta: fs::Metadata| meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
        fs::symlink_metadata(self.dir).is_ok_and(|meta| meta.is_dir() && ours(meta))
    }

    fn read(&self) -> Option<Vec<u8>> {
        let file = self.is_ours().then(|| fs::File::open(self.path()).ok())??;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        let image = bytes.split_off(DIGEST_BYTES.min(bytes.len()));
        (!image.is_empty() && bytes == self.digest(&image)).then_some(image)
    }

    fn write(&self, image: &[u8]) -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir)?;
        if !self.is_ours() {
            let text = format!("{} is not this user's alone", self.dir.display());
            return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, text));
        }
        let temporary = self.path().with_extension(format!("{}.tmp", std::process::id()));
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(&self.digest(image)).and_then(|()| file.write_all(image));
        let kept = written.and_then(|()| fs::rename(&temporary, self.path()));
        if kept.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_cache_gives_back_what_was_kept_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let facts = DeviceFacts { capability: (9, 0), driver_version: 12_080, ..DeviceFacts::default() };
        let cache = Cache { dir: &dir, key: key(&facts) };
        assert_eq!(cache.read(), None);
        cache.write(b"machine code").unwrap();
        assert_eq!(cache.read().as_deref(), Some(&b"machine code"[..]));
        let newer = DeviceFacts { driver_version: 13_000, ..facts };
        assert_eq!(Cache { dir: &dir, key: key(&newer) }.read(), None);

        let mut bytes = fs::read(cache.path()).unwrap();
        for cut in [0, 31, 32, bytes.len() - 1] {
            fs::write(cache.path(), &bytes[..cut]).unwrap();
            assert_eq!(cache.read(), None, "cut at {cut}");
        }
        bytes[40] ^= 1;
        fs::write(cache.path(), &bytes).unwrap();
        assert_eq!(cache.read(), None, "a bit is wrong");

        cache.write(b"machine code").unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(cache.read(), None, "others may have written it");
        assert!(cache.write(b"machine code").is_err());
    }
}
