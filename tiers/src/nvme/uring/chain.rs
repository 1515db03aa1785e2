//! One operation as a chain of linked requests, and what its results mean.
//!
//! Payload and footer are two requests, each inside one registered buffer. One vectored request, which pins its pages anew, took 10 to 20 %
//! more CPU time at 2 MiB; at 256 KiB neither was steadily faster.
//!
//! A link runs when the one before it succeeded in full; a failed or short one cancels all that follow. So nothing is published
//! that was not written, and what is left to do after a failure is to close and to remove the temporary file.

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustix::io::Errno;

use super::memory::Registered;
use crate::nvme::device::{Buffer, Cause, DeviceError, FileOp, FileStat, Outcome, Step};
use crate::nvme::sys;

/// Links of the longest chain.
pub(super) const LINKS: usize = 7;
/// A link that was not sent, or whose result has not come.
const NO_RESULT: i32 = i32::MIN;

// Places of links in `results`, the same in every kind of chain; an operation of one request uses the first.
const ONLY: usize = 0;
const TAKE: usize = 0;
const OPEN: usize = 1;
const PAYLOAD: usize = 2;
const FOOTER: usize = 3;
const CLOSE: usize = 4;
const PUBLISH: usize = 5;
const STAT: usize = 6;

/// What an operation is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The operation itself.
    Run,
    /// Closing and removing after this failure.
    Tidy(DeviceError),
}

/// An operation in the kernel. It does not move while it is there: requests point into it.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) tag: u64,
    op: Option<FileOp>,
    phase: Phase,
    /// Results still to come.
    pending: u32,
    results: [i32; LINKS],
    /// The next run takes the victim's file over.
    takes: bool,
    pub(super) cancelled: bool,
    /// `struct statx`.
    statx: [u64; 32],
}

/// What the ring gives to a chain.
pub(super) struct Place<'a> {
    /// Index of the chain: its direct descriptor, and the upper part of its user data.
    pub(super) index: u32,
    pub(super) root: types::Fd,
    pub(super) direct: bool,
    pub(super) registered: Option<&'a Registered>,
}

/// What to do after a chain's last result.
#[derive(Debug)]
pub(super) enum Next {
    /// Results are still to come.
    Wait,
    /// Send this chain's requests again: [`Chain::requests`].
    Send,
    /// The operation is complete.
    Done(Result<Outcome, DeviceError>),
}

impl Chain {
    pub(super) const fn idle() -> Self {
        Self {
            tag: 0,
            op: None,
            phase: Phase::Run,
            pending: 0,
            results: [NO_RESULT; LINKS],
            takes: false,
            cancelled: false,
            statx: [0; 32],
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.op.is_none()
    }

    pub(super) fn start(&mut self, tag: u64, op: FileOp) {
        let takes = matches!(&op, FileOp::Write(write) if write.recycle.is_some());
        *self = Self { tag, op: Some(op), takes, ..Self::idle() };
    }

    /// Links whose result has not come, to be cancelled.
    pub(super) fn unfinished_links(&self) -> impl Iterator<Item = usize> {
        // What is being tidied up is not to be stopped.
        let links = if self.phase == Phase::Run && self.pending > 0 { LINKS } else { 0 };
        (0..links).filter(|link| self.results[*link] == NO_RESULT)
    }

    /// The requests to send now, in order, linked.
    pub(super) fn requests(&mut self, place: &Place<'_>, out: &mut Vec<Entry>) {
        self.results = [NO_RESULT; LINKS];
        let mut links = Links { out, index: place.index, sent: 0 };
        match self.phase {
            Phase::Tidy(_) => self.tidy_requests(place, &mut links),
            Phase::Run => match &self.op {
                None => {}
                Some(FileOp::Write(_)) => self.write_requests(place, &mut links),
                Some(FileOp::Read(_)) => self.read_requests(place, &mut links),
                Some(FileOp::Remove(path)) => {
                    links.last(ONLY, opcode::UnlinkAt::new(place.root, path.as_c_str().as_ptr()).build());
                }
                Some(FileOp::Rename { from, to }) => {
                    let (from, to) = (from.as_c_str().as_ptr(), to.as_c_str().as_ptr());
                    links.last(ONLY, opcode::RenameAt::new(place.root, from, place.root, to).build());
                }
                Some(FileOp::Stat(path)) => {
                    let statx = self.statx.as_mut_ptr().cast();
                    links.last(ONLY, stat_request(place, path.as_c_str().as_ptr(), statx));
                }
            },
        }
        self.pending = links.sent;
    }

    fn write_requests(&mut self, place: &Place<'_>, links: &mut Links<'_>) {
        let Some(FileOp::Write(op)) = &self.op else { return };
        let (temp, target) = (op.temp.as_c_str().as_ptr(), op.target.as_c_str().as_ptr());
        if let Some(victim) = op.recycle.as_ref().filter(|_| self.takes) {
            let victim = victim.as_c_str().as_ptr();
            links.then(TAKE, opcode::RenameAt::new(place.root, victim, place.root, temp).build());
        }
        let flags = sys::write_flags(self.takes, place.direct);
        links.then(OPEN, open_request(place, temp, flags));
        let file = types::Fixed(place.index);
        let payload_bytes = u64::from(op.payload.len());
        links.then(PAYLOAD, write_request(place, file, &op.payload, 0));
        links.then(FOOTER, write_request(place, file, &op.footer, payload_bytes));
        links.then(CLOSE, opcode::Close::new(file).build());
        links.then(PUBLISH, opcode::RenameAt::new(place.root, temp, place.root, target).build());
        links.last(STAT, stat_request(place, target, self.statx.as_mut_ptr().cast()));
    }

    fn read_requests(&self, place: &Place<'_>, links: &mut Links<'_>) {
        let Some(FileOp::Read(op)) = &self.op else { return };
        links.then(OPEN, open_request(place, op.path.as_c_str().as_ptr(), sys::read_flags(place.direct)));
        let file = types::Fixed(place.index);
        let payload_bytes = u64::from(op.payload.len());
        // Hard links: the file is closed whatever the reads say.
        links.always(PAYLOAD, read_request(place, file, &op.payload, 0));
        links.always(FOOTER, read_request(place, file, &op.footer, payload_bytes));
        links.last(CLOSE, opcode::Close::new(file).build());
    }

    fn tidy_requests(&self, place: &Place<'_>, links: &mut Links<'_>) {
        let Some(FileOp::Write(op)) = &self.op else { return };
        // The descriptor may be closed already and the file gone: both are tried, neither result matters.
        links.always(CLOSE, opcode::Close::new(types::Fixed(place.index)).build());
        links.last(ONLY, opcode::UnlinkAt::new(place.root, op.temp.as_c_str().as_ptr()).build());
    }

    /// Takes one result. `true`: it was the last.
    pub(super) fn result(&mut self, link: usize, result: i32) -> bool {
        if let Some(place) = self.results.get_mut(link) {
            *place = result;
        }
        self.pending = self.pending.saturating_sub(1);
        self.pending == 0 && !self.is_idle()
    }

    /// After the last result: what next.
    pub(super) fn next(&mut self) -> Next {
        if self.pending > 0 {
            return Next::Wait;
        }
        if let Phase::Tidy(error) = self.phase {
            return self.done(Err(error));
        }
        match &self.op {
            None => Next::Wait,
            Some(FileOp::Write(op)) => {
                let wanted = [
                    (TAKE, Step::Take, 0),
                    (OPEN, Step::Open, 0),
                    (PAYLOAD, Step::Write, op.payload.len()),
                    (FOOTER, Step::Write, op.footer.len()),
                    (CLOSE, Step::Close, 0),
                    (PUBLISH, Step::Publish, 0),
                ];
                let len_bytes = u64::from(op.payload.len()) + u64::from(op.footer.len());
                if self.takes && self.results[TAKE] == -Errno::NOENT.raw_os_error() {
                    if self.cancelled {
                        return self.done(Err(DeviceError::new(Step::Take, Cause::Cancelled)));
                    }
                    // No victim: once more, with a fresh file.
                    self.takes = false;
                    return Next::Send;
                }
                match self.first_failure(&wanted) {
                    None => {
                        let mut stat = self.stat();
                        if self.results[STAT] < 0 {
                            stat = FileStat { len_bytes, allocated_bytes: len_bytes, modified_ns: 0, is_file: true };
                        }
                        let recycled = self.takes;
                        self.done(Ok(Outcome { stat, recycled }))
                    }
                    // Nothing was made or taken: nothing to tidy up.
                    Some(error) if self.results[OPEN] < 0 && self.results[TAKE] < 0 => self.done(Err(error)),
                    Some(error) => {
                        self.phase = Phase::Tidy(error);
                        Next::Send
                    }
                }
            }
            Some(FileOp::Read(op)) => {
                let wanted = [
                    (OPEN, Step::Open, 0),
                    (PAYLOAD, Step::Read, op.payload.len()),
                    (FOOTER, Step::Read, op.footer.len()),
                ];
                let result = self.first_failure(&wanted).map_or(Ok(Outcome::default()), Err);
                self.done(result)
            }
            Some(FileOp::Remove(_)) => self.done_only(Step::Remove),
            Some(FileOp::Rename { .. }) => self.done_only(Step::Rename),
            Some(FileOp::Stat(_)) => {
                let stat = self.stat();
                let failure = self.first_failure(&[(ONLY, Step::Stat, 0)]);
                self.done(failure.map_or(Ok(Outcome { stat, recycled: false }), Err))
            }
        }
    }

    fn done_only(&mut self, step: Step) -> Next {
        let failure = self.first_failure(&[(ONLY, step, 0)]);
        self.done(failure.map_or(Ok(Outcome::default()), Err))
    }

    fn done(&mut self, result: Result<Outcome, DeviceError>) -> Next {
        self.op = None;
        Next::Done(result)
    }

    /// The link that broke the chain, among (place, step, bytes wanted): the first that failed by itself, else the first that was
    /// cancelled.
    fn first_failure(&self, wanted: &[(usize, Step, u32)]) -> Option<DeviceError> {
        let cancelled = -Errno::CANCELED.raw_os_error();
        let mut first_cancelled = None;
        let mut before = 0;
        for &(link, step, bytes) in wanted {
            let result = self.results[link];
            if result == NO_RESULT {
                continue;
            }
            if result == cancelled {
                first_cancelled = first_cancelled.or(Some(DeviceError::new(step, Cause::Cancelled)));
            } else if result < 0 {
                let errno = Errno::from_raw_os_error(-result);
                let cause =
                    if self.cancelled && errno == Errno::INTR { Cause::Cancelled } else { sys::cause_of(errno) };
                return Some(DeviceError::new(step, cause));
            } else if (result as u32) < bytes {
                return Some(DeviceError::new(step, Cause::Short { got: before + u64::from(result as u32) }));
            }
            before += u64::from(bytes);
        }
        first_cancelled
    }

    /// What `statx` gave.
    fn stat(&self) -> FileStat {
        // Offsets of `struct statx`: mode u16 at 28, size u64 at 40, blocks u64 at 48, mtime (i64, u32) at 112.
        let mode = (self.statx[3] >> 32) as u32 & 0xffff;
        let seconds = self.statx[14];
        let nanoseconds = self.statx[15] & 0xffff_ffff;
        FileStat {
            len_bytes: self.statx[5],
            allocated_bytes: self.statx[6].saturating_mul(512),
            modified_ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
            is_file: rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::RegularFile,
        }
    }
}

/// Requests being strung together.
struct Links<'a> {
    out: &'a mut Vec<Entry>,
    index: u32,
    sent: u32,
}

impl Links<'_> {
    fn push(&mut self, link: usize, entry: Entry, flags: Flags) {
        self.sent += 1;
        self.out.push(entry.flags(flags).user_data(user_data(self.index, link)));
    }

    /// The next runs if this one succeeds.
    fn then(&mut self, link: usize, entry: Entry) {
        self.push(link, entry, Flags::IO_LINK);
    }

    /// The next runs whatever this one says.
    fn always(&mut self, link: usize, entry: Entry) {
        self.push(link, entry, Flags::IO_HARDLINK);
    }

    fn last(&mut self, link: usize, entry: Entry) {
        self.push(link, entry, Flags::empty());
    }
}

/// Names a link of a chain in the ring.
pub(super) const fn user_data(index: u32, link: usize) -> u64 {
    (index as u64) << 8 | link as u64
}

/// Back from [`user_data`].
pub(super) const fn link_of(user_data: u64) -> (u64, usize) {
    (user_data >> 8, (user_data & 0xff) as usize)
}

fn open_request(place: &Place<'_>, path: *const std::ffi::c_char, flags: rustix::fs::OFlags) -> Entry {
    // A direct descriptor is no entry of the process's table: close-on-exec means nothing there and is refused.
    let flags = flags.difference(rustix::fs::OFlags::CLOEXEC).bits().cast_signed();
    opcode::OpenAt::new(place.root, path)
        .flags(flags)
        .mode(sys::FILE_MODE.as_raw_mode())
        .file_index(types::DestinationSlot::try_from_slot_target(place.index).ok())
        .build()
}

fn write_request(place: &Place<'_>, file: types::Fixed, buffer: &Buffer, offset: u64) -> Entry {
    let address = buffer.address().as_ptr();
    match place.registered.and_then(|registered| registered.index_of(buffer)) {
        Some(piece) => opcode::WriteFixed::new(file, address, buffer.len(), piece).offset(offset).build(),
        None => opcode::Write::new(file, address, buffer.len()).offset(offset).build(),
    }
}

fn read_request(place: &Place<'_>, file: types::Fixed, buffer: &Buffer, offset: u64) -> Entry {
    let address = buffer.address().as_ptr();
    match place.registered.and_then(|registered| registered.index_of(buffer)) {
        Some(piece) => opcode::ReadFixed::new(file, address, buffer.len(), piece).offset(offset).build(),
        None => opcode::Read::new(file, address, buffer.len()).offset(offset).build(),
    }
}

fn stat_request(place: &Place<'_>, path: *const std::ffi::c_char, statx: *mut types::statx) -> Entry {
    let mask = rustix::fs::StatxFlags::BASIC_STATS.bits();
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW.bits().cast_signed();
    opcode::Statx::new(place.root, path, statx).mask(mask).flags(flags).build()
}
