//! Raw file operations in one directory, batched: what a [`Shard`](super::Shard) stands on.
//!
//! [`UringDevice`](super::UringDevice) and [`PosixDevice`](super::PosixDevice) are the real ones; a simulator is
//! another.
//! A device knows paths and bytes; it knows no format, no CRC, no deadline and no queue.
//!
//! Every operation is a fixed sequence of steps ([`Step`]). A crash may fall between any two, and inside any step
//! that moves bytes. A failed step ends the operation: its later steps are not done, and what the operation's own
//! documentation says is tidied up. Operations of one batch run in any order and at the same time.

use std::ptr::NonNull;
use std::time::Duration;

use super::path::RelPath;

/// Memory that one operation reads or fills.
///
/// **The operation owns this memory until its completion has been given by [`Device::reap`]**: whoever built the buffer
/// keeps it mapped until then, and no device touches it after.
#[derive(Debug)]
pub struct Buffer {
    address: NonNull<u8>,
    len: u32,
}

#[expect(unsafe_code, reason = "memory that the kernel or a simulator fills is named by its address")]
mod buffer {
    use super::{Buffer, NonNull};

    // SAFETY: a buffer is an address and a length; whoever dereferences it does so under the contract of `Buffer::new`,
    // which binds no thread.
    unsafe impl Send for Buffer {}

    impl Buffer {
        /// Names `len` bytes at `address`.
        ///
        /// # Safety
        /// They stay valid for reads and writes until the operation that this buffer is given to has completed. Nobody
        /// else writes them meanwhile, except the owner of a store that was given up, whose bytes are then worthless.
        pub const unsafe fn new(address: NonNull<u8>, len: u32) -> Self {
            Self { address, len }
        }

        /// The bytes, for a device that writes them to a file.
        ///
        /// # Safety
        /// Only the device that holds the unfinished operation, and no longer than until it gives the completion.
        pub const unsafe fn as_slice(&self) -> &[u8] {
            // SAFETY: valid by the contract of `new`; the caller keeps to the operation's life.
            unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len as usize) }
        }

        /// The bytes, for a device that fills them from a file.
        ///
        /// # Safety
        /// As for [`Buffer::as_slice`].
        pub const unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
            // SAFETY: as above; the exclusive borrow of the only handle keeps it unaliased.
            unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len as usize) }
        }
    }
}

impl Buffer {
    /// Where the bytes are. A multiple of 4 KiB.
    pub const fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// How many bytes: a multiple of 4 KiB.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// One operation. Paths are relative to the root.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "moved once into a table that exists from the start")]
pub enum FileOp {
    /// Write a file under a temporary name, then publish it.
    Write(WriteFile),
    /// Read a file from its start into two buffers.
    Read(ReadFile),
    /// Remove a file. Step: [`Step::Remove`]. A missing file is the error [`Cause::Missing`].
    Remove(RelPath),
    /// Rename a file, replacing the target. Step: [`Step::Rename`].
    Rename {
        /// Old name.
        from: RelPath,
        /// New name.
        to: RelPath,
    },
    /// Ask for a file's length and age. Step: [`Step::Stat`].
    Stat(RelPath),
}

/// Writes a file under a temporary name, then publishes it.
///
/// Steps:
/// 1. [`Step::Take`], only with `recycle`: rename `recycle` to `temp`. If there is no such file, go on without.
/// 2. [`Step::Open`]: open `temp` for writing; without a taken file create it and cut it to zero length, with one leave
///    its length and content as they are.
/// 3. [`Step::Write`]: `payload` at offset 0, `footer` behind it. May be torn anywhere, in units of 512 bytes and in
///    any order. Success means that all bytes were taken.
/// 4. [`Step::Close`].
/// 5. [`Step::Publish`]: rename `temp` to `target`, atomically replacing a file of that name.
///
/// When it fails or is cancelled, whatever stands under `temp` is removed if that can be done, and `target` is as it
/// was. The file at `recycle` may be gone or not.
#[derive(Debug)]
pub struct WriteFile {
    /// A name in `tmp/` that no other unfinished operation uses.
    pub temp: RelPath,
    /// The final name. Its directory exists, or the operation fails at `Publish` with `Missing`.
    pub target: RelPath,
    /// A file of the same length to overwrite in place.
    pub recycle: Option<RelPath>,
    /// First bytes.
    pub payload: Buffer,
    /// Last bytes.
    pub footer: Buffer,
}

/// Reads a file from its start into two buffers.
///
/// Steps:
/// 1. [`Step::Open`]. No such file: the error [`Cause::Missing`].
/// 2. [`Step::Read`]: fill `payload`, then `footer`. A file that ends early: the error [`Cause::Short`]; both buffers
///    then hold anything. A longer file is read as far as the buffers go.
/// 3. Close; its result does not matter.
#[derive(Debug)]
pub struct ReadFile {
    /// Name of the file.
    pub path: RelPath,
    /// Filled first.
    pub payload: Buffer,
    /// Filled with what follows.
    pub footer: Buffer,
}

/// Parts of operations, as errors name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Rename a victim to the temporary name.
    Take,
    /// Open a file.
    Open,
    /// Write payload and footer.
    Write,
    /// Close after writing.
    Close,
    /// Rename the temporary name to the final one.
    Publish,
    /// Read payload and footer.
    Read,
    /// Remove a file.
    Remove,
    /// Rename a file.
    Rename,
    /// Ask for length and age.
    Stat,
    /// Make a directory.
    MakeDir,
    /// List a directory.
    List,
}

/// Why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No such file or directory.
    Missing,
    /// It is there already.
    Exists,
    /// The device or a quota is full.
    NoSpace,
    /// The file system is read-only.
    ReadOnly,
    /// The operation was cancelled by [`Device::cancel`].
    Cancelled,
    /// Fewer bytes than asked for.
    Short {
        /// How many.
        got: u64,
    },
    /// Another error of the operating system.
    Errno(i32),
}

/// A step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceError {
    /// Which step.
    pub step: Step,
    /// Why.
    pub cause: Cause,
}

impl DeviceError {
    /// A failure of `step`.
    pub const fn new(step: Step, cause: Cause) -> Self {
        Self { step, cause }
    }
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: ", self.step)?;
        match self.cause {
            Cause::Missing => f.write_str("no such file or directory"),
            Cause::Exists => f.write_str("file exists"),
            Cause::NoSpace => f.write_str("no space left on device"),
            Cause::ReadOnly => f.write_str("read-only file system"),
            Cause::Cancelled => f.write_str("cancelled"),
            Cause::Short { got } => write!(f, "only {got} bytes"),
            Cause::Errno(errno) => std::fmt::Display::fmt(&std::io::Error::from_raw_os_error(errno), f),
        }
    }
}

/// Length and age of a file; after a write, what it takes on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStat {
    /// Length.
    pub len_bytes: u64,
    /// Bytes that it takes on the device.
    pub allocated_bytes: u64,
    /// When it was last written, nanoseconds since some epoch.
    pub modified_ns: u64,
    /// It is a regular file.
    pub is_file: bool,
}

/// The end of an operation. From here on its buffers are touched no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation's tag.
    pub tag: u64,
    /// `Write`: the published file, of which only `allocated_bytes` must be right. `Stat`: the file. Others: all zero.
    pub result: Result<Outcome, DeviceError>,
}

/// What a finished operation tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// See [`Completion::result`].
    pub stat: FileStat,
    /// `Write`: a victim's file was taken over.
    pub recycled: bool,
}

/// Memory in which buffers of operations lie.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    /// Where it starts: a multiple of 4 KiB.
    pub start: NonNull<u8>,
    /// How long it is: a multiple of 4 KiB.
    pub bytes: usize,
    /// No buffer crosses a multiple of this, counted from the start.
    pub unit_bytes: usize,
}

// SAFETY: a range is an address and two numbers; whoever dereferences it does so under the contract of
// `Device::announce`, which
// binds no thread.
#[expect(unsafe_code, reason = "memory that is registered with the kernel is named by its address")]
unsafe impl Send for MemoryRange {}

/// How far the registration of memory with the kernel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// All that ever will be is registered.
    Done,
    /// The next piece is not backed yet.
    Waits,
    /// There is more to register.
    More,
}

/// Raw file operations in one directory, driven by one thread.
///
/// Tags are chosen by the caller and unique among unfinished operations.
pub trait Device {
    /// Most unfinished operations that [`Device::submit`] takes; at least 1.
    fn depth(&self) -> u32;

    /// Takes an operation; it may run any time from here to its completion. Called only while fewer than `depth` are
    /// unfinished.
    fn submit(&mut self, tag: u64, op: FileOp);

    /// Hands what was submitted to the kernel. Once per batch.
    fn flush(&mut self);

    /// Asks for an early end of an unfinished operation. It still completes, by [`Cause::Cancelled`] or as if never
    /// asked. Unknown tags are ignored.
    fn cancel(&mut self, tag: u64);

    /// Appends finished operations, each once. Does not wait.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Flushes, then sleeps until an operation may have finished, somebody woke the device, or `timeout` passed. May
    /// return early. With
    /// nothing unfinished, no waker and no timeout it returns at once.
    fn wait(&mut self, timeout: Option<Duration>);

    /// Announces memory in which the buffers of later operations will lie, before the first of them: `backed` can be
    /// registered with the
    /// kernel at once, `slots` must not be touched before they are ready. A device that cannot register memory works
    /// without and
    /// says [`Registration::Done`].
    ///
    /// # Safety
    /// It stays mapped for as long as the device lives.
    #[expect(unsafe_code, reason = "the kernel keeps these addresses")]
    unsafe fn announce(&mut self, backed: MemoryRange, slots: Option<MemoryRange>) -> Registration {
        let _ = (backed, slots);
        Registration::Done
    }

    /// Registers at most one more piece of the announced slots, of which the first `ready_bytes` are backed. Blocks
    /// for some milliseconds;
    /// operations go on meanwhile. What cannot be registered is said in the log, once, and used without.
    fn register_next(&mut self, ready_bytes: u64) -> Registration {
        let _ = ready_bytes;
        Registration::Done
    }

    /// Operations submitted and not reaped.
    fn unfinished(&self) -> u32;

    /// Makes a directory, at once; fine if it exists. Only in rare moments: the first block of a fan-out directory.
    fn make_dir(&mut self, path: &RelPath) -> Result<(), DeviceError>;

    /// Starts to list a directory; the listing before it is dropped. `RelPath::root()` is the root itself.
    fn list_start(&mut self, path: &RelPath) -> Result<(), DeviceError>;

    /// Appends up to `max` more names of the directory being listed, without `.` and `..`, in any order. `false`: that
    /// was all. Files that come or go meanwhile may be named or not.
    fn list_next(&mut self, max: usize, out: &mut Vec<DirEntry>) -> Result<bool, DeviceError>;
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory.
    pub name: String,
    /// Known to be a directory.
    pub is_dir: bool,
}
