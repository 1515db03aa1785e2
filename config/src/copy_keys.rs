//! The table of keys, for `[copy]`.

use crate::bounds::COPY_PIECE_BYTES;
use crate::copy::{CopyChoice, CopyConfig, CopyPath};
use crate::draft::Draft;
use crate::form::Form;
use crate::key::*;
use crate::value::Value;

/// Keys of `[copy]`.
pub(crate) static COPY: [Key<Draft>; 9] = [
    row(
        "engine",
        Form::Word(CopyChoice::WORDS),
        word("auto"),
        |d| Place::CopyChoice(&mut d.config.copy.engine),
        "\"auto\" (CUDA where its driver can be loaded, else the host's), \"host\" (memory to memory) or \"cuda\" (an error at start where \
         the driver is missing).",
    ),
    row(
        "devices",
        Form::Devices,
        Preset::Is(Value::Texts(Vec::new())),
        |d| Place::Texts(&mut d.config.copy.devices),
        "GPUs that may be used: numbers as this process counts them, or \"GPU-<uuid>\". Empty: all. In process the first one is taken.",
    ),
    row(
        "path",
        Form::Word(CopyPath::WORDS),
        word("auto"),
        |d| Place::CopyPath(&mut d.config.copy.path),
        "How GPU memory is copied: \"auto\" (what is fastest for a length, measured at start), \"batch\", \"runs\", \"rects\" or \"kernel\".",
    ),
    row(
        "kernel_blocks",
        count(1, 1024),
        number(16),
        |d| Place::Count(&mut d.config.copy.kernel_blocks),
        "Thread blocks of the gather kernel: as many multiprocessors work for it at most.",
    ),
    row(
        "queue_entries",
        count(1, 1 << 20),
        number(1024),
        |d| Place::Count(&mut d.config.copy.queue_entries),
        "Copies that one engine may have in flight.",
    ),
    row(
        "piece_bytes",
        Form::Size { min: COPY_PIECE_BYTES, max: 1 << 40 },
        Preset::Is(Value::Size(256 << 20)),
        |d| Place::LongSize(&mut d.config.copy.piece_bytes),
        "The region is registered with the driver in pieces of this size, behind the running service. A multiple of 2 MiB.",
    ),
    row(
        "register_threads",
        count(1, 64),
        number(4),
        |d| Place::Count(&mut d.config.copy.register_threads),
        "Threads that register.",
    ),
    row(
        "nvrtc",
        Form::Path,
        Preset::Unset("\"/usr/local/cuda/lib64/libnvrtc.so.12\""),
        |d| Place::PathOrUnset(&mut d.config.copy.nvrtc),
        "NVIDIA's run-time compiler, for the gather kernel. If left out: where the loader finds it, else the kernel that is built in.",
    ),
    row(
        "cache_dir",
        Form::Directory,
        Preset::Unset("\"/var/cache/terrace/kernels\""),
        |d| Place::PathOrUnset(&mut d.config.copy.cache_dir),
        "Where compiled kernels are kept. If left out: terrace/kernels in the user's cache.",
    ),
];

impl Default for CopyConfig {
    /// The section `[copy]` with no key written.
    fn default() -> Self {
        let mut draft = Draft::blank();
        COPY.iter().for_each(|key| key.put_default(&mut draft));
        draft.config.copy
    }
}
