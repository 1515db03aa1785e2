//! Listing the directory behind normal work: `tmp/` is emptied, then every block file is reported.

use super::Shard;
use super::table::{Doing, Entry, print_of};
use super::warn::Kind;
use crate::clock::Time;
use crate::nvme::device::{Cause, Device, DeviceError, DirEntry, FileOp, Outcome};
use crate::nvme::name::{FAN_OUT, TMP, parse_namespace};
use crate::nvme::path::RelPath;
use crate::nvme::port::{BlockName, PortEvent, ScannedBlock};

/// Names listed in one step, and blocks told in one event.
const PIECE: usize = 256;
/// Namespaces that one root may hold; further ones are not listed.
const MAX_NAMESPACES: usize = 1 << 16;

/// What is being listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing yet: stores pause, and those under way are waited for.
    Start,
    /// `tmp/`. Stores pause, because what stands there now is not theirs.
    Sweep,
    /// The root: namespaces.
    Root,
    /// A namespace: fan-out directories.
    Namespace,
    /// A fan-out directory: block files.
    Files,
    /// Nothing more; the last files may still be asked for.
    End,
}

/// A scan under way.
#[derive(Debug)]
pub(super) struct Scan {
    stage: Stage,
    /// The current directory is open and has more names.
    listing: bool,
    /// Names listed and not dealt with.
    entries: Vec<DirEntry>,
    /// Directories still to list, and those being listed.
    namespaces: Vec<String>,
    fan_outs: Vec<String>,
    namespace: String,
    fan_out: String,
    found: Vec<ScannedBlock>,
    complete: bool,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Start,
            listing: false,
            entries: Vec::new(),
            namespaces: Vec::new(),
            fan_outs: Vec::new(),
            namespace: String::new(),
            fan_out: String::new(),
            found: Vec::new(),
            complete: true,
        }
    }

    /// Finds the next directory to list.
    fn advance(&mut self) -> Option<RelPath> {
        loop {
            if let Some(fan_out) = self.fan_outs.pop() {
                self.fan_out = fan_out;
                self.stage = Stage::Files;
                return RelPath::new(&self.namespace)?.join(&self.fan_out);
            }
            match self.stage {
                Stage::Start => {
                    self.stage = Stage::Sweep;
                    return RelPath::new(TMP);
                }
                Stage::Sweep => {
                    self.stage = Stage::Root;
                    return Some(RelPath::root());
                }
                Stage::Root | Stage::Namespace | Stage::Files | Stage::End => {}
            }
            self.namespace = self.namespaces.pop()?;
            self.stage = Stage::Namespace;
            if let Some(path) = RelPath::new(&self.namespace) {
                return Some(path);
            }
        }
    }
}

impl<D: Device> Shard<D> {
    /// Stores wait while `tmp/` is emptied.
    pub(super) fn stores_pause(&self) -> bool {
        self.scan.as_ref().is_some_and(|scan| matches!(scan.stage, Stage::Start | Stage::Sweep))
    }

    /// Whether the scan could do something right now.
    pub(super) fn scan_can_go_on(&self) -> bool {
        let Some(scan) = self.scan.as_ref().filter(|_| !self.scan_held) else { return false };
        match scan.stage {
            Stage::End => self.table.scans() == 0,
            Stage::Start => self.table.writes() == 0,
            Stage::Sweep if scan.entries.is_empty() => self.table.scans() == 0,
            _ => scan.entries.is_empty() || self.scan_has_room(),
        }
    }

    fn scan_has_room(&self) -> bool {
        self.table.scans() < (self.table.len() / 4).max(1) && self.table.next_free().is_some()
    }

    /// Goes on with the scan: one piece of a listing at most.
    pub(super) fn step_scan(&mut self, out: &mut Vec<PortEvent>) {
        self.start_scan_ops();
        if !self.scan_can_go_on() {
            return;
        }
        let Some(scan) = &mut self.scan else { return };
        if !scan.entries.is_empty() {
            return;
        }
        if scan.found.len() >= PIECE || (scan.stage == Stage::End && !scan.found.is_empty()) {
            out.push(PortEvent::Scanned(std::mem::take(&mut scan.found)));
        }
        if scan.stage == Stage::End {
            out.push(PortEvent::ScanEnd { complete: scan.complete });
            self.scan = None;
            return;
        }
        if let Err((path, error)) = self.list_piece() {
            // A directory that went away meanwhile holds nothing.
            if error.cause != Cause::Missing {
                self.spoil_scan(&format_args!("{path}: {error}"));
            }
            if let Some(scan) = &mut self.scan {
                scan.listing = false;
                scan.entries.clear();
            }
        }
        self.start_scan_ops();
    }

    /// Lists some more names of the current directory, or of the next.
    fn list_piece(&mut self) -> Result<(), (RelPath, DeviceError)> {
        let (Some(scan), Some(device)) = (&mut self.scan, &mut self.device) else { return Ok(()) };
        let mut at = RelPath::root();
        if !scan.listing {
            let Some(path) = scan.advance() else {
                scan.stage = Stage::End;
                return Ok(());
            };
            at = path;
            device.list_start(&path).map_err(|error| (path, error))?;
            scan.listing = true;
        }
        scan.listing = device.list_next(PIECE, &mut scan.entries).map_err(|error| (at, error))?;
        match scan.stage {
            Stage::Root => {
                let names = scan.entries.drain(..).map(|entry| entry.name);
                scan.namespaces.extend(names.filter(|name| parse_namespace(name).is_some()));
                if scan.namespaces.len() > MAX_NAMESPACES {
                    scan.namespaces.truncate(MAX_NAMESPACES);
                    self.spoil_scan(&"too many namespaces");
                }
            }
            Stage::Namespace => {
                let is_fan_out = |name: &String| {
                    name.len() == 3 && u16::from_str_radix(name, 16).is_ok_and(|fan_out| fan_out < FAN_OUT)
                };
                scan.fan_outs.extend(scan.entries.drain(..).map(|entry| entry.name).filter(is_fan_out));
            }
            Stage::Start | Stage::Sweep | Stage::Files | Stage::End => {}
        }
        Ok(())
    }

    /// Removes or asks for the files listed, as far as there is room.
    fn start_scan_ops(&mut self) {
        while self.scan_has_room() {
            let Some(scan) = &mut self.scan else { return };
            let Some(entry) = scan.entries.pop() else { return };
            let (doing, op) = match scan.stage {
                Stage::Sweep => match RelPath::new(TMP).and_then(|tmp| tmp.join(&entry.name)) {
                    Some(path) => (Doing::Sweep, FileOp::Remove(path)),
                    None => continue,
                },
                _ => match BlockName::parse(&scan.namespace, &scan.fan_out, &entry.name) {
                    Some(name) => (Doing::Stat { name }, FileOp::Stat(name.path())),
                    None => {
                        self.counters.foreign_files += 1;
                        continue;
                    }
                },
            };
            let files = match doing {
                Doing::Stat { name } => [Some(print_of(&name.namespace, &name.key)), None],
                _ => [None, None],
            };
            let deadline = Time(u64::MAX);
            let entry = Entry { doing, ticket: None, files, deadline, cancelled: false, abandoned: false };
            if let Some(index) = self.table.insert(entry) {
                self.submit(index, op);
            }
        }
    }

    /// A scanned file was asked for.
    pub(super) fn scanned(&mut self, name: BlockName, result: Result<Outcome, DeviceError>) {
        match result {
            Ok(Outcome { stat, .. }) if stat.is_file => {
                let (allocated_bytes, modified_ns) = (stat.allocated_bytes, stat.modified_ns);
                if let Some(scan) = &mut self.scan {
                    scan.found.push(ScannedBlock { name, allocated_bytes, modified_ns });
                }
            }
            Ok(_) => self.counters.foreign_files += 1,
            Err(error) if error.cause == Cause::Missing => {}
            Err(error) => self.spoil_scan(&format_args!("{}: {error}", name.path())),
        }
    }

    /// A temporary file of an earlier life was removed.
    pub(super) fn swept(&mut self, result: Result<Outcome, DeviceError>) {
        match result {
            Ok(_) => self.counters.leftovers += 1,
            Err(error) if error.cause == Cause::Missing => {}
            Err(error) => self.spoil_scan(&format_args!("{TMP}: {error}")),
        }
    }

    fn spoil_scan(&mut self, problem: &dyn std::fmt::Display) {
        if let Some(scan) = &mut self.scan {
            scan.complete = false;
        }
        self.warn(Kind::Scan, problem);
    }
}
