//! A disk and a catalog in memory that outlive the tiers over them, for tests of the tier's logic alone.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use terrace_config::{Choice, Geometry, NvmeConfig};
use terrace_primary::{Key, Region};
use terrace_tiers::catalog::{CatalogEntry, CatalogState, CatalogStore, CatalogValue};
use terrace_tiers::nvme::{BlockName, Command, NvmeOptions, Placed, PortEvent, ScannedBlock, ShardPort};
use terrace_tiers::{Fault, ManualClock, NvmeTier};

pub const BLOCK_BYTES: u32 = 8192;
/// What one block takes: payload and footer.
pub const FILE_BYTES: u64 = 12288;
pub const NAMESPACE: [u8; 32] = [7; 32];

pub const GEOMETRY: Geometry =
    Geometry { block_bytes: BLOCK_BYTES, tokens_per_block: 16, blocks_per_chunk: 1, groups: 2, hash_bytes: 32 };

pub fn key(n: u64) -> Key {
    Key::new(&n.to_be_bytes(), 0).unwrap()
}

pub fn config(blocks: u64, lanes: usize) -> NvmeConfig {
    NvmeConfig {
        paths: (0..lanes).map(|lane| format!("/unused/{lane}").into()).collect(),
        capacity_bytes: blocks * FILE_BYTES,
        high_watermark: 1.0,
        low_watermark: 1.0,
        queue_depth: 8,
        queue_entries: 64,
        direct_io: Choice::Auto,
        io_uring: Choice::Auto,
        catalog: Choice::Auto,
        scrub_bytes_per_second: 0,
    }
}

/// What one directory holds.
#[derive(Debug, Default)]
pub struct Files {
    /// CRC, bytes, time of the last write.
    pub files: BTreeMap<BlockName, (u32, u64, u64)>,
    pub writes: u64,
    pub removes: u64,
    /// The next operations that fail, each with its fault.
    pub faults: VecDeque<Fault>,
    /// Nothing completes.
    pub stopped: bool,
    /// Bytes at which the disk is full.
    pub disk_bytes: Option<u64>,
    /// So many stores do not find their victim's file, although it is there.
    pub missed: u32,
    pub most_bytes: u64,
    /// Commands that the port takes at once; 0: any number.
    pub queue: usize,
}

impl Files {
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|(_, bytes, _)| bytes).sum()
    }
}

#[derive(Clone, Debug, Default)]
pub struct FakeDisk(Arc<Mutex<Files>>);

impl FakeDisk {
    pub fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap()
    }

    pub fn put(&self, name: BlockName, bytes: u64, modified_ns: u64) {
        self.lock().files.insert(name, (0, bytes, modified_ns));
    }
}

/// A port over a [`FakeDisk`]: everything pushed is done at the next poll.
pub struct FakePort {
    disk: FakeDisk,
    queue: Vec<Command>,
    abandoned: Vec<u64>,
    scanning: bool,
    closed: bool,
    events: Vec<PortEvent>,
}

impl FakePort {
    pub fn new(disk: &FakeDisk) -> Self {
        Self {
            disk: disk.clone(),
            queue: Vec::new(),
            abandoned: Vec::new(),
            scanning: false,
            closed: false,
            events: Vec::new(),
        }
    }

    fn run(&mut self, command: Command) -> Result<Placed, Fault> {
        let files = &mut *self.disk.lock();
        let fault = if self.abandoned.contains(&command.ticket()) {
            Some(Fault::Expired)
        } else if self.closed {
            Some(Fault::Closed)
        } else {
            files.faults.pop_front()
        };
        match command {
            Command::Store { key, crc32, recycle, .. } => {
                let victim_missed = recycle.is_some() && files.missed > 0;
                files.missed -= u32::from(victim_missed);
                if let Some(victim) = recycle.filter(|_| !victim_missed) {
                    files.files.remove(&victim);
                }
                if let Some(fault) = fault {
                    return Err(fault);
                }
                let full = files.disk_bytes.is_some_and(|most| files.bytes() + FILE_BYTES > most);
                if full {
                    return Err(Fault::Full);
                }
                files.writes += 1;
                let placed = Placed { crc32: crc32.unwrap_or(9), allocated_bytes: FILE_BYTES, victim_missed };
                let name = BlockName { namespace: NAMESPACE, key };
                let time = 1_000_000 + files.writes;
                files.files.insert(name, (placed.crc32, FILE_BYTES, time));
                files.most_bytes = files.most_bytes.max(files.bytes());
                Ok(placed)
            }
            Command::Load { key, crc32, .. } => {
                if let Some(fault) = fault {
                    if matches!(fault, Fault::Corrupt | Fault::Absent) {
                        files.files.remove(&BlockName { namespace: NAMESPACE, key });
                    }
                    return Err(fault);
                }
                let Some((found, _, _)) = files.files.get(&BlockName { namespace: NAMESPACE, key }) else {
                    return Err(Fault::Absent);
                };
                assert!(crc32.is_none_or(|crc32| crc32 == *found), "the index has another CRC than the file");
                Ok(Placed { crc32: *found, ..Placed::default() })
            }
            Command::Remove { name, .. } => match fault {
                Some(fault) => Err(fault),
                None => {
                    files.removes += 1;
                    files.files.remove(&name);
                    Ok(Placed::default())
                }
            },
        }
    }
}

impl ShardPort for FakePort {
    fn push(&mut self, command: Command) -> Result<(), Command> {
        let most = self.disk.lock().queue;
        if self.closed || most > 0 && self.queue.len() >= most {
            return Err(command);
        }
        self.queue.push(command);
        Ok(())
    }

    fn abandon(&mut self, ticket: u64) {
        self.abandoned.push(ticket);
    }

    fn scan(&mut self) {
        self.scanning = true;
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut Vec<PortEvent>) {
        out.append(&mut self.events);
        if self.disk.lock().stopped && !self.closed {
            return;
        }
        for command in std::mem::take(&mut self.queue) {
            let result = self.run(command);
            out.push(PortEvent::Done { ticket: command.ticket(), result });
        }
        self.abandoned.clear();
        if std::mem::take(&mut self.scanning) {
            let files = self.disk.lock();
            let found = files.files.iter().map(|(name, (_, allocated_bytes, modified_ns))| ScannedBlock {
                name: *name,
                allocated_bytes: *allocated_bytes,
                modified_ns: *modified_ns,
            });
            for piece in found.collect::<Vec<_>>().chunks(10) {
                out.push(PortEvent::Scanned(piece.to_vec()));
            }
            out.push(PortEvent::ScanEnd { complete: true });
        }
    }

    fn shutdown(&mut self, _within: Duration) {
        self.closed = true;
        let mut events = Vec::new();
        self.poll(&mut events);
        self.events = events;
    }
}

#[derive(Debug, Default)]
pub struct Kept {
    pub entries: BTreeMap<BlockName, CatalogValue>,
    pub exists: bool,
    pub clean: bool,
    pub distrusted: bool,
    pub generation: u32,
    /// Changes are dropped: what a crash of the catalog alone does.
    pub deaf: bool,
}

/// A catalog that outlives its tiers.
#[derive(Clone, Debug, Default)]
pub struct FakeCatalog(Arc<Mutex<Kept>>);

impl FakeCatalog {
    pub fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    pub fn open(&self) -> Box<dyn CatalogStore> {
        let mut kept = self.lock();
        kept.generation += 1;
        let state = if kept.exists && !kept.distrusted {
            CatalogState::Read { clean: kept.clean }
        } else {
            kept.entries.clear();
            CatalogState::Lost
        };
        (kept.exists, kept.clean, kept.distrusted) = (true, false, state == CatalogState::Lost);
        let unread = kept.entries.iter().map(|(name, value)| {
            let crc32 = value.crc32.filter(|_| state == CatalogState::Read { clean: true });
            CatalogEntry { name: *name, value: CatalogValue { crc32, ..*value } }
        });
        let unread = unread.collect();
        Box::new(OpenCatalog { kept: self.clone(), unread, state, generation: kept.generation })
    }
}

struct OpenCatalog {
    kept: FakeCatalog,
    unread: VecDeque<CatalogEntry>,
    state: CatalogState,
    generation: u32,
}

impl CatalogStore for OpenCatalog {
    fn poll(&mut self, most: usize, out: &mut Vec<CatalogEntry>) -> CatalogState {
        let count = most.min(5).min(self.unread.len());
        out.extend(self.unread.drain(..count));
        if self.unread.is_empty() { self.state } else { CatalogState::Reading }
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn put(&mut self, name: &BlockName, value: &CatalogValue) {
        let mut kept = self.kept.lock();
        if !kept.deaf {
            kept.entries.insert(*name, *value);
        }
    }

    fn delete(&mut self, name: &BlockName) {
        let mut kept = self.kept.lock();
        if !kept.deaf {
            kept.entries.remove(name);
        }
    }

    fn room(&self) -> usize {
        1 << 16
    }

    fn flush(&mut self) {}

    fn distrust(&mut self) {
        self.kept.lock().distrusted = true;
    }

    fn rebuilt(&mut self) {
        self.kept.lock().distrusted = false;
    }

    fn shutdown(&mut self, clean: bool, _within: Duration) {
        self.kept.lock().clean = clean;
    }

    fn lost(&self) -> u64 {
        0
    }
}

/// A tier over fake disks.
pub fn tier(config: &NvmeConfig, disks: &[FakeDisk], catalog: Box<dyn CatalogStore>, clock: &ManualClock) -> NvmeTier {
    let options = NvmeOptions {
        config,
        name: "nvme".into(),
        namespace: NAMESPACE,
        geometry: GEOMETRY,
        region: Region::null(64, BLOCK_BYTES, BLOCK_BYTES),
        clock: Arc::new(clock.clone()),
    };
    let ports = disks.iter().map(|disk| -> Box<dyn ShardPort> { Box::new(FakePort::new(disk)) }).collect();
    NvmeTier::with_ports(options, ports, catalog).unwrap()
}
