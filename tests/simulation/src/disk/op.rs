//! One operation of a simulated disk, sub-step by sub-step.

use terrace_tiers::nvme::{
    Cause, Completion, DeviceError, FileOp, FileStat, Outcome, ReadFile, RelPath, Step, WriteFile,
};

use super::faults::{Kind, Weather};
use super::files::{Errno, Ino, PAGE_BYTES, SECTOR_BYTES};
use super::{Echo, State, memory};
use crate::rng::splitmix;

const EIO: i32 = 5;
const EMFILE: i32 = 24;
/// The due time of what never goes on.
const NEVER: u64 = u64::MAX;

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Rename the victim to the temporary name.
    Take,
    /// Open or create the file.
    Open,
    /// Move this part of the bytes.
    Move(u64),
    /// Close after writing.
    Close,
    /// Rename to the final name.
    Publish,
    /// The only step of operations that move no bytes.
    Once,
}

/// An operation that was submitted and not told as finished.
pub(super) struct Op {
    /// Which directory.
    pub(super) root: usize,
    /// When the next sub-step, or the telling of the result, is due.
    pub(super) due_ns: u64,
    tag: u64,
    file_op: FileOp,
    phase: Phase,
    parts: u64,
    salt: u64,
    trick: Option<Kind>,
    ino: Option<Ino>,
    recycled: bool,
    result: Option<Result<Outcome, DeviceError>>,
}

type Progress = Result<Option<Phase>, DeviceError>;

impl Op {
    pub(super) fn new(root: usize, tag: u64, file_op: FileOp, disk: &mut State) -> Self {
        let phase = match &file_op {
            FileOp::Write(write) if write.recycle.is_some() => Phase::Take,
            FileOp::Write(_) | FileOp::Read(_) => Phase::Open,
            FileOp::Remove(_) | FileOp::Rename { .. } | FileOp::Stat(_) => Phase::Once,
        };
        let trick = Self::draw_trick(&file_op, disk);
        let (parts, salt) = (disk.rng.between(1, 4), disk.rng.next());
        let mut op =
            Self { root, due_ns: 0, tag, file_op, phase, parts, salt, trick, ino: None, recycled: false, result: None };
        op.schedule(disk, terrace_tiers::Clock::now(&disk.clock).0);
        op
    }

    pub(super) const fn is_read(&self) -> bool {
        matches!(self.file_op, FileOp::Read(_))
    }

    pub(super) const fn is_removal(&self) -> bool {
        matches!(self.file_op, FileOp::Remove(_))
    }

    /// Whether a sub-step is due.
    pub(super) const fn is_due(&self, now_ns: u64) -> bool {
        self.result.is_none() && self.due_ns <= now_ns
    }

    pub(super) const fn is_over(&self) -> bool {
        self.result.is_some()
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        (self.due_ns != NEVER).then_some(self.due_ns)
    }

    pub(super) const fn tag(&self) -> u64 {
        self.tag
    }

    /// The completion, once it is over and due to be told.
    pub(super) fn completion(&self, now_ns: u64) -> Option<Completion> {
        let result = self.result.filter(|_| self.due_ns <= now_ns)?;
        Some(Completion { tag: self.tag, result })
    }

    /// What hangs goes on.
    pub(super) fn release(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.min(now_ns + 1_000_000);
    }

    /// Tries to end it early. Kernels mostly cannot.
    pub(super) fn cancel(&mut self, disk: &mut State) {
        if !self.is_over() && disk.rng.chance(if self.due_ns == NEVER { 500 } else { 200 }) {
            let step = self.step_name();
            self.due_ns = terrace_tiers::Clock::now(&disk.clock).0;
            self.end(disk, Err(DeviceError::new(step, Cause::Cancelled)));
        }
    }

    /// Does one sub-step.
    pub(super) fn step(&mut self, disk: &mut State) {
        match self.weather(disk).and_then(|()| self.progress(disk)) {
            Ok(Some(phase)) => {
                self.phase = phase;
                self.schedule(disk, self.due_ns);
            }
            Ok(None) => {
                let outcome = self.outcome(disk);
                self.end(disk, Ok(outcome));
            }
            Err(error) => self.end(disk, Err(error)),
        }
    }

    fn draw_trick(file_op: &FileOp, disk: &mut State) -> Option<Kind> {
        use Kind::*;
        let kinds: &[Kind] = match file_op {
            FileOp::Write(_) => {
                &[WriteLost, WriteTorn, WriteMisdirected, WriteDuplicated, WriteRot, WriteError, NoSpace]
            }
            FileOp::Read(_) => &[ReadError, ReadShort, ReadTruncated, ReadStale, ReadMisdirected, ReadRot],
            _ => &[],
        };
        kinds.iter().copied().find(|kind| disk.faults.strikes(*kind, &mut disk.rng))
    }

    fn schedule(&mut self, disk: &mut State, from_ns: u64) {
        let latency_ns = disk.latency_ns();
        let hangs = disk.faults.strikes(Kind::Hang, &mut disk.rng);
        self.due_ns = if hangs { NEVER } else { from_ns + latency_ns };
    }

    /// What it does and to which file, for the trace.
    fn title(&self) -> (&'static str, String) {
        match &self.file_op {
            FileOp::Write(write) => ("write", short(&write.target)),
            FileOp::Read(read) => ("read", short(&read.path)),
            FileOp::Remove(path) => ("remove", short(path)),
            FileOp::Rename { from, .. } => ("rename", short(from)),
            FileOp::Stat(path) => ("stat", short(path)),
        }
    }

    const fn step_name(&self) -> Step {
        match (&self.file_op, self.phase) {
            (FileOp::Remove(_), _) => Step::Remove,
            (FileOp::Rename { .. }, _) => Step::Rename,
            (FileOp::Stat(_), _) => Step::Stat,
            (FileOp::Read(_), Phase::Move(_)) => Step::Read,
            (_, Phase::Take) => Step::Take,
            (_, Phase::Open | Phase::Once) => Step::Open,
            (_, Phase::Move(_)) => Step::Write,
            (_, Phase::Close) => Step::Close,
            (_, Phase::Publish) => Step::Publish,
        }
    }

    fn fail<T>(&self, cause: Cause) -> Result<T, DeviceError> {
        Err(DeviceError::new(self.step_name(), cause))
    }

    fn errno(&self, errno: Errno) -> DeviceError {
        DeviceError::new(self.step_name(), cause(errno))
    }

    fn weather(&self, disk: &mut State) -> Result<(), DeviceError> {
        let changes = !matches!(self.file_op, FileOp::Read(_) | FileOp::Stat(_));
        let cause = match disk.weather[self.root] {
            Weather::Failing => Cause::Errno(EIO),
            Weather::Gone => Cause::Missing,
            Weather::ReadOnly if changes => Cause::ReadOnly,
            _ => return Ok(()),
        };
        disk.weather_failures += 1;
        disk.denied += u64::from(cause == Cause::Missing);
        self.fail(cause)
    }

    /// One sub-step of any operation: the next phase, or `None` at the end.
    fn progress(&mut self, disk: &mut State) -> Progress {
        let now_ns = self.due_ns;
        let root = disk.roots[self.root].clone();
        let path = |path: &RelPath| format!("{root}/{}", path.as_str());
        match &self.file_op {
            FileOp::Write(write) => {
                let names = (path(&write.temp), path(&write.target), write.recycle.as_ref().map(path));
                self.progress_write(disk, &names, now_ns)
            }
            FileOp::Read(read) => {
                let path = path(&read.path);
                self.progress_read(disk, &path)
            }
            FileOp::Remove(name) => {
                let path = path(name);
                if disk.faults.strikes(Kind::RemoveError, &mut disk.rng) {
                    return self.fail(Cause::Errno(EIO));
                }
                disk.files.unlink(&path).map(|()| None).map_err(|errno| self.errno(errno))
            }
            FileOp::Rename { from, to } => {
                let (from, to) = (path(from), path(to));
                self.rename(disk, &from, &to).map(|()| None)
            }
            FileOp::Stat(name) => {
                let path = path(name);
                self.ino = Some(disk.files.open(&path).map_err(|errno| self.errno(errno))?);
                Ok(None)
            }
        }
    }

    fn progress_write(
        &mut self,
        disk: &mut State,
        (temp, target, recycle): &(String, String, Option<String>),
        now_ns: u64,
    ) -> Progress {
        match self.phase {
            Phase::Take => {
                if let Some(victim) = recycle {
                    match self.rename(disk, victim, temp) {
                        Ok(()) => self.recycled = disk.files.find(temp).is_ok(),
                        Err(error) if error.cause == Cause::Missing => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(Some(Phase::Open))
            }
            Phase::Open => {
                if disk.faults.strikes(Kind::OpenError, &mut disk.rng) {
                    return self.fail(Cause::Errno(EMFILE));
                }
                let opened = if self.recycled { disk.files.open(temp) } else { disk.files.create(temp, now_ns) };
                self.ino = Some(opened.map_err(|errno| self.errno(errno))?);
                Ok(Some(Phase::Move(0)))
            }
            Phase::Move(part) => {
                self.write_part(disk, part, now_ns)?;
                Ok(Some(if part + 1 < self.parts { Phase::Move(part + 1) } else { Phase::Close }))
            }
            Phase::Close => {
                if disk.faults.strikes(Kind::CloseError, &mut disk.rng) {
                    return self.fail(Cause::Errno(EIO));
                }
                Ok(Some(Phase::Publish))
            }
            Phase::Publish | Phase::Once => self.rename(disk, temp, target).map(|()| None),
        }
    }

    fn progress_read(&mut self, disk: &mut State, path: &str) -> Progress {
        match self.phase {
            Phase::Move(part) => {
                self.read_part(disk, part)?;
                Ok((part + 1 < self.parts).then_some(Phase::Move(part + 1)))
            }
            _ => {
                if disk.faults.strikes(Kind::OpenError, &mut disk.rng) {
                    return self.fail(Cause::Errno(EMFILE));
                }
                self.ino = Some(disk.files.open(path).map_err(|errno| self.errno(errno))?);
                Ok(Some(Phase::Move(0)))
            }
        }
    }

    /// A rename, with its faults.
    fn rename(&self, disk: &mut State, from: &str, to: &str) -> Result<(), DeviceError> {
        disk.files.find(from).map_err(|errno| self.errno(errno))?;
        if disk.faults.strikes(Kind::RenameError, &mut disk.rng) {
            return self.fail(Cause::Errno(EIO));
        }
        if disk.faults.strikes(Kind::RenameLost, &mut disk.rng) {
            return Ok(());
        }
        disk.files.rename(from, to).map_err(|errno| self.errno(errno))?;
        if disk.faults.strikes(Kind::RenameUnsure, &mut disk.rng) {
            return self.fail(Cause::Errno(EIO));
        }
        Ok(())
    }

    /// Writes the sectors that fall into this part; which ones, the operation's salt says.
    fn write_part(&mut self, disk: &mut State, part: u64, now_ns: u64) -> Result<(), DeviceError> {
        let FileOp::Write(WriteFile { payload, footer, .. }) = &self.file_op else { return Ok(()) };
        let mut bytes = memory::read(payload, footer);
        if self.trick == Some(Kind::WriteRot) {
            let bit = (self.salt % (8 * bytes.len() as u64)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let own = self.ino.unwrap_or(Ino(u64::MAX));
        let grows_bytes =
            (bytes.len().next_multiple_of(PAGE_BYTES) as u64).saturating_sub(disk.files.allocated_bytes(own));
        let full = disk.weather[self.root] == Weather::Full || disk.files.used_bytes() + grows_bytes > disk.space_bytes;
        if full && grows_bytes > 0 {
            return self.fail(Cause::NoSpace);
        }
        let target = match self.trick {
            Some(Kind::WriteLost) => None,
            Some(Kind::WriteMisdirected) => disk.any_file(),
            _ => Some(own),
        };
        let last = part + 1 == self.parts;
        if let Some(target) = target {
            for (sector, chunk) in bytes.chunks(SECTOR_BYTES).enumerate() {
                let lot = splitmix(self.salt ^ sector as u64);
                let torn = self.trick == Some(Kind::WriteTorn) && (lot >> 32).is_multiple_of(2);
                if lot % self.parts == part && !torn {
                    let written = disk.files.write(target, sector * SECTOR_BYTES, chunk, now_ns);
                    written.map_err(|errno| self.errno(errno))?;
                }
            }
        }
        match self.trick {
            Some(Kind::WriteDuplicated) if last => {
                let due_ns = now_ns + disk.rng.skewed(20_000_000_000);
                disk.echoes.push(Echo { due_ns, ino: own, bytes });
                Ok(())
            }
            Some(Kind::WriteError) if last => self.fail(Cause::Errno(EIO)),
            Some(Kind::NoSpace) if last => self.fail(Cause::NoSpace),
            _ => Ok(()),
        }
    }

    /// Fills this part of the buffers, front to back.
    fn read_part(&mut self, disk: &mut State, part: u64) -> Result<(), DeviceError> {
        let other = disk.any_file();
        let (step, salt, parts, trick) = (self.step_name(), self.salt, self.parts, self.trick);
        let FileOp::Read(ReadFile { payload, footer, .. }) = &mut self.file_op else { return Ok(()) };
        let wanted = payload.len() as usize + footer.len() as usize;
        let own = self.ino.unwrap_or(Ino(u64::MAX));
        let bytes = match trick {
            Some(Kind::ReadStale) => disk.files.durable_bytes(own),
            Some(Kind::ReadMisdirected) => other.and_then(|other| disk.files.bytes(other)),
            _ => disk.files.bytes(own),
        };
        let bytes = bytes.unwrap_or_default();
        let from = (wanted as u64 * part / parts) as usize;
        let to = ((wanted as u64 * (part + 1) / parts) as usize).min(bytes.len());
        let last = part + 1 == parts;
        if from < to && !(last && trick == Some(Kind::ReadTruncated)) {
            memory::fill(payload, footer, from, &bytes[from..to]);
            let bit = (salt % (8 * wanted as u64)) as usize;
            if trick == Some(Kind::ReadRot) && (from..to).contains(&(bit / 8)) {
                memory::fill(payload, footer, bit / 8, &[bytes[bit / 8] ^ (1 << (bit % 8))]);
            }
        }
        match trick {
            Some(Kind::ReadError) if last => Err(DeviceError::new(step, Cause::Errno(EIO))),
            Some(Kind::ReadShort) if last => Err(DeviceError::new(step, Cause::Short { got: from as u64 })),
            _ if last && bytes.len() < wanted => Err(DeviceError::new(step, Cause::Short { got: bytes.len() as u64 })),
            _ => Ok(()),
        }
    }

    fn outcome(&self, disk: &State) -> Outcome {
        match (&self.file_op, self.ino) {
            (FileOp::Write(_) | FileOp::Stat(_), Some(ino)) => {
                Outcome { stat: stat(disk, ino), recycled: self.recycled }
            }
            _ => Outcome::default(),
        }
    }

    /// It is over: tidies up and keeps the result until it is told.
    fn end(&mut self, disk: &mut State, result: Result<Outcome, DeviceError>) {
        if let (FileOp::Write(write), Err(_)) = (&self.file_op, &result) {
            let temp = format!("{}/{}", disk.roots[self.root], write.temp.as_str());
            let tidied = matches!(disk.weather[self.root], Weather::Fair | Weather::Full);
            if tidied && !disk.faults.strikes(Kind::RemoveError, &mut disk.rng) {
                let _ = disk.files.unlink(&temp);
            }
        }
        if let Some(ino) = self.ino.take() {
            disk.files.close(ino);
        }
        let found_nothing = matches!(result, Err(DeviceError { cause: Cause::Missing, .. }));
        disk.reads_of_nothing += u64::from(self.is_read() && found_nothing);
        if disk.faults.strikes(Kind::ToldLate, &mut disk.rng) {
            self.due_ns = self.due_ns.saturating_add(disk.rng.skewed(2_000_000_000));
        }
        let (what, name) = self.title();
        match &result {
            Ok(outcome) => disk.trace.add(format_args!(
                "{}:{} {what} {name} done{}",
                self.root,
                self.tag,
                if outcome.recycled { ", recycled" } else { "" }
            )),
            Err(error) => disk.trace.add(format_args!("{}:{} {what} {name} failed: {error}", self.root, self.tag)),
        }
        let is_away = disk.weather[self.root] == Weather::Gone;
        let remains = result.as_ref().is_err_and(|error| error.cause != Cause::Missing || is_away);
        disk.removals_failed += u64::from(self.is_removal() && remains);
        self.result = Some(result);
    }
}

/// Start and end of a path: enough to tell files apart.
fn short(path: &RelPath) -> String {
    let text = path.as_str();
    match (text.get(..4), text.get(text.len().saturating_sub(24)..)) {
        (Some(start), Some(end)) if text.len() > 28 => format!("{start}..{end}"),
        _ => text.to_owned(),
    }
}

/// Length and age of a file.
fn stat(disk: &State, ino: Ino) -> FileStat {
    FileStat {
        len_bytes: disk.files.bytes(ino).map_or(0, |bytes| bytes.len() as u64),
        allocated_bytes: disk.files.allocated_bytes(ino),
        modified_ns: disk.files.modified_ns(ino),
        is_file: true,
    }
}

/// The device's word for an error of the file system.
pub(super) const fn cause(errno: Errno) -> Cause {
    match errno {
        Errno::NotFound => Cause::Missing,
        Errno::Exists => Cause::Exists,
        Errno::Kind | Errno::Stale => Cause::Errno(EIO),
    }
}
