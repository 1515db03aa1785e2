//! How bytes go between an engine's KV memory and the region.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::ConfigError;

/// The copy engine. Where it stands for a GPU, which one and how it copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyConfig {
    /// Which kind.
    pub engine: CopyChoice,
    /// Devices that may be used, each a number as this process counts them, or `GPU-` and a UUID. Empty: all. In process the first one
    /// is taken.
    pub devices: Vec<String>,
    /// The way that runs are copied.
    pub path: CopyPath,
    /// Thread blocks of the gather kernel, `1..=1024`.
    pub kernel_blocks: u32,
    /// Copies in flight at most.
    pub queue_entries: u32,
    /// Bytes of the pieces in which the region is registered, a multiple of 2 MiB.
    pub piece_bytes: u64,
    /// Threads that register, `1..=64`.
    pub register_threads: u32,
    /// Path of `libnvrtc`. `None`: where the loader finds it.
    pub nvrtc: Option<PathBuf>,
    /// Where compiled kernels are kept. `None`: in the user's cache.
    pub cache_dir: Option<PathBuf>,
}

/// Kinds of copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyChoice {
    /// CUDA where its driver can be loaded, else the host's.
    Auto,
    /// Memory to memory, for engines without a GPU.
    Host,
    /// CUDA; an error at start where the driver cannot be loaded.
    Cuda,
}

/// Ways to copy between a GPU and the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPath {
    /// What is fastest for a length, as measured at start.
    Auto,
    /// Many runs in one call.
    Batch,
    /// A copy for each run.
    Runs,
    /// Two-dimensional copies where distances are constant.
    Rects,
    /// The gather kernel.
    Kernel,
}

macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),*) => {
        impl $type {
            /// All words, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word that stands for it in a configuration.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = ConfigError;

            fn from_str(word: &str) -> Result<Self, ConfigError> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(ConfigError::UnknownWord { word: word.to_owned(), words: Self::WORDS }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

words!(CopyChoice: Auto = "auto", Host = "host", Cuda = "cuda");
words!(CopyPath: Auto = "auto", Batch = "batch", Runs = "runs", Rects = "rects", Kernel = "kernel");
