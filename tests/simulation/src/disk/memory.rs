//! The one place where the simulated device touches an operation's memory.
#![expect(unsafe_code, reason = "a device reads and fills buffers that are named by address")]

use terrace_tiers::nvme::Buffer;

/// The bytes of both buffers, one behind the other.
pub(super) fn read(payload: &Buffer, footer: &Buffer) -> Vec<u8> {
    // SAFETY: called by the disk for an operation that it has not completed: until then the buffers are valid, by the
    // contract of `Buffer::new`, and this process' other threads do not write them (the simulation has one thread).
    let (payload, footer) = unsafe { (payload.as_slice(), footer.as_slice()) };
    [payload, footer].concat()
}

/// Fills the bytes `from..from + bytes.len()` of both buffers taken as one.
pub(super) fn fill(payload: &mut Buffer, footer: &mut Buffer, from: usize, bytes: &[u8]) {
    // SAFETY: as in `read`; the exclusive borrows are of the only handles.
    let (payload, footer) = unsafe { (payload.as_mut_slice(), footer.as_mut_slice()) };
    let targets = payload.iter_mut().chain(footer).skip(from);
    for (target, byte) in targets.zip(bytes) {
        *target = *byte;
    }
}
