//! A region that another process made: what must hold of its file before it is mapped.

use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::param::page_size;

use super::PageKind;
use super::map::Mapping;
use crate::error::PrimaryError;

/// What `statfs` says of a file of huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Maps the first `bytes` of `fd`.
pub(super) fn attach(fd: OwnedFd, bytes: usize) -> Result<Mapping, PrimaryError> {
    let system = |step: &'static str| move |errno: Errno| PrimaryError::System { step, source: errno.into() };
    // The seal first: without it the length says nothing about the next moment.
    let seals = match fcntl_get_seals(&fd) {
        Ok(seals) => seals,
        // No memfd: nothing seals it.
        Err(Errno::INVAL) => SealFlags::empty(),
        Err(errno) => return Err(system("asking for the seals of its file")(errno)),
    };
    if !seals.contains(SealFlags::SHRINK) {
        return Err(PrimaryError::Unsealed);
    }
    let stat = fstat(&fd).map_err(system("asking for the length of its file"))?;
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let (pages, page_bytes) = match fstatfs(&fd) {
        // The magic number is the low half of a field of either sign.
        Ok(statfs) if statfs.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC => {
            (PageKind::Huge, usize::try_from(stat.st_blksize).unwrap_or(0).max(page_size()))
        }
        Ok(_) => (PageKind::Normal, page_size()),
        Err(errno) => return Err(system("asking for the page size of its file")(errno)),
    };
    let short = PrimaryError::ShortFile { need_bytes: bytes as u64, file_bytes };
    // A file's last page is there in full.
    match bytes.checked_next_multiple_of(page_bytes) {
        Some(whole) if file_bytes >= bytes as u64 => {
            // SAFETY: the file reaches into the last page, is sealed against shrinking, and `whole` ends with a page
            // of its size.
            #[expect(unsafe_code, reason = "shared memory of another process")]
            let mapping = unsafe { Mapping::of(fd, whole, pages) };
            mapping.map_err(system("mapping the file of another process"))
        }
        _ => Err(short),
    }
}
