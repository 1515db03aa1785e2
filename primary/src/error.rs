//! Why a region cannot be had. Each text names the limit, what is needed, and the fix.

use std::io;

/// What can go wrong in the primary tier; only while it starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrimaryError {
    /// The shape of the region makes no sense.
    #[error("a region of {slots} slots of {slot_stride} bytes for blocks of {block_bytes} bytes: {why}")]
    Shape {
        /// Slots asked for.
        slots: u32,
        /// Distance between two slots.
        slot_stride: u32,
        /// Payload of one slot.
        block_bytes: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The machine has less memory to give than the region takes.
    #[error(
        "the primary tier needs {need_bytes} bytes ({:.1} GiB) of memory, {available_bytes} ({:.1} GiB) are available \
         ({limit}): lower [primary] capacity, or free memory",
        gib(*need_bytes),
        gib(*available_bytes)
    )]
    Memory {
        /// Bytes of the region.
        need_bytes: u64,
        /// Bytes that can be had without other processes being killed.
        available_bytes: u64,
        /// Which limit that is.
        limit: &'static str,
    },
    /// 2 MiB pages are required and not reserved.
    #[error(
        "[primary] huge_pages = \"require\" needs {need_pages} free pages of 2 MiB, {free_pages} are free: run \
         `sysctl vm.nr_hugepages={total_pages}`, or set huge_pages = \"auto\""
    )]
    HugePages {
        /// Pages that the region takes.
        need_pages: u64,
        /// Pages that are free now.
        free_pages: u64,
        /// What to set `vm.nr_hugepages` to.
        total_pages: u64,
    },
    /// The region may not be locked in memory.
    #[error(
        "[primary] lock_memory = true needs {need_bytes} bytes of locked memory, RLIMIT_MEMLOCK is {limit_bytes}: raise it \
         (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit), or set lock_memory = false"
    )]
    LockLimit {
        /// Bytes of the region.
        need_bytes: u64,
        /// The soft limit of this process.
        limit_bytes: u64,
    },
    /// The region cannot be bound to the NUMA node.
    #[error("[primary] numa_node = {node} cannot be used: {why}")]
    NumaNode {
        /// The node asked for.
        node: u32,
        /// What the machine says.
        why: String,
    },
    /// Another process's region lies in a file that could be cut off under this one.
    #[error(
        "the file of the primary region is not sealed against shrinking (F_SEAL_SHRINK), and a page that is cut off would kill this \
         process: hand over the descriptor that `Region::fd` gives"
    )]
    Unsealed,
    /// What another process handed over is no table of the primary that was agreed on.
    #[error(
        "the table of the primary does not begin as it must (words {header:x?}): client and daemon are of different releases"
    )]
    Table {
        /// Its first words.
        header: [u32; 6],
    },
    /// Another process's region is smaller than it says.
    #[error(
        "the file of the primary region has {file_bytes} bytes, its slots take {need_bytes}: hand over the number of slots and \
         the stride that the region was made with"
    )]
    ShortFile {
        /// Bytes of all slots.
        need_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The operating system refused a step.
    #[error("the primary region: {step} failed")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}
