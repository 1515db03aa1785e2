//! Measures one directory's shard against fio: fresh files, recycled files and loads, interleaved, several rounds.
//!
//! `cargo run --release -p terrace-tiers --example shard_rate -- DIR [rounds] [MiB a phase] [block sizes in KiB, comma-separated]`.
//! The directory is made, and removed at the end. fio runs with io_uring, O_DIRECT and depth 32 in the same directory: a fresh file, the same file
//! overwritten, and reads of the very files that the shard wrote. The last line of a block size has the medians and their ratios.

use std::error::Error;
use std::path::Path;
use std::process::Command as Process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_config::Choice;
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::nvme::name::namespace_dir;
use terrace_tiers::nvme::{
    BlockName, Command, DirectoryOptions, PortEvent, ShardOptions, ShardPort, ThreadedPort, open_directory,
};
use terrace_tiers::{SystemClock, Time};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NAMESPACE: [u8; 32] = [0x77; 32];
const FIO_DEPTH: &str = "32";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(arguments.first().ok_or("give a directory")?);
    let rounds: usize = arguments.get(1).map_or(Ok(3), |text| text.parse())?;
    let phase_bytes: u64 = arguments.get(2).map_or(Ok(1024), |text| text.parse())? << 20;
    let sizes = arguments.get(3).map_or("256,2048", String::as_str);
    for size in sizes.split(',') {
        measure(root, rounds, phase_bytes, size.parse::<u32>()? << 10)?;
    }
    Ok(std::fs::remove_dir_all(root)?)
}

fn measure(root: &Path, rounds: usize, phase_bytes: u64, block_bytes: u32) -> Result<()> {
    let slots = (256 << 20) / block_bytes;
    let blocks = (phase_bytes / u64::from(block_bytes)) as u32;
    let options = RegionOptions {
        slots,
        slot_stride: block_bytes,
        block_bytes,
        huge_pages: Choice::Auto,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 0,
    };
    let region = Region::create(&options, &|_, _| {})?;
    let mut rows: Vec<[f64; 6]> = Vec::new();
    for round in 0..=rounds {
        // A new directory each round, removed at the end: ext4 without a journal takes milliseconds to make a file where many
        // were removed in the last minutes.
        let root = &root.join(format!("{block_bytes}-{round}"));
        std::fs::create_dir_all(root)?;
        let mut run = Run::open(root, &region, slots)?;
        // Which of a pair goes first changes from round to round.
        let first = round % 2 == 0;
        let (fio_fresh, fio_over) = if first { fio_writes(root, phase_bytes, block_bytes)? } else { (0.0, 0.0) };
        let fresh = run.store(0..blocks, false)?;
        let recycled = run.store(blocks..2 * blocks, true)?;
        let (fio_fresh, fio_over) =
            if first { (fio_fresh, fio_over) } else { fio_writes(root, phase_bytes, block_bytes)? };
        let files = root.join(namespace_dir(&NAMESPACE).as_str());
        let fio_read = if first { fio_reads(&files, block_bytes)? } else { 0.0 };
        let load = run.load(blocks..2 * blocks)?;
        let fio_read = if first { fio_read } else { fio_reads(&files, block_bytes)? };
        drop(run);
        let row = [fresh, fio_fresh, recycled, fio_over, load, fio_read];
        if round > 0 {
            rows.push(row);
        }
        println!(
            "{:>5} KiB round {round}{} {}",
            block_bytes >> 10,
            if round == 0 { " (warm-up)" } else { "" },
            table(&row)
        );
    }
    let mut medians = [0.0; 6];
    for (column, median) in medians.iter_mut().enumerate() {
        let mut values: Vec<f64> = rows.iter().map(|row| row[column]).collect();
        values.sort_by(f64::total_cmp);
        *median = values[values.len() / 2];
    }
    println!("{:>5} KiB medians {}", block_bytes >> 10, table(&medians));
    Ok(())
}

fn table(row: &[f64; 6]) -> String {
    let part = |name: &str, ours: f64, fio: f64| format!("{name} {ours:>5.0}/{fio:>5.0} MB/s = {:>4.2}", ours / fio);
    format!("{}  {}  {}", part("fresh", row[0], row[1]), part("recycled", row[2], row[3]), part("load", row[4], row[5]))
}

fn key(number: u32) -> Key {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    hash[8..12].copy_from_slice(&number.to_le_bytes());
    Key::new(&hash, 0).unwrap_or_else(|_| unreachable!("32 bytes are a hash"))
}

fn name(number: u32) -> BlockName {
    BlockName { namespace: NAMESPACE, key: key(number) }
}

struct Run {
    port: ThreadedPort,
    slots: u32,
    block_bytes: u32,
}

impl Run {
    fn open(root: &Path, region: &Arc<Region>, slots: u32) -> Result<Self> {
        let io_uring = if std::env::var_os("POSIX").is_some() { Choice::Off } else { Choice::Require };
        let port = open_directory(DirectoryOptions {
            tier: "nvme".into(),
            root: root.into(),
            index: 0,
            direct_io: Choice::Require,
            io_uring,
            shard: ShardOptions::new(NAMESPACE),
            region: Arc::clone(region),
            clock: Arc::new(SystemClock::new()),
        })?;
        Ok(Self { port, slots, block_bytes: region.block_bytes() })
    }

    fn store(&mut self, numbers: std::ops::Range<u32>, recycle: bool) -> Result<f64> {
        let blocks = numbers.len() as u32;
        self.drive(numbers, |ticket, number, slot| Command::Store {
            ticket,
            key: key(number),
            slot,
            crc32: None,
            recycle: recycle.then(|| name(number - blocks)),
            deadline: Time(u64::MAX),
        })
    }

    fn load(&mut self, numbers: std::ops::Range<u32>) -> Result<f64> {
        self.drive(numbers, |ticket, number, slot| Command::Load {
            ticket,
            key: key(number),
            slot,
            crc32: None,
            deadline: Time(u64::MAX),
        })
    }

    /// Keeps every slot busy; MB/s.
    fn drive(&mut self, numbers: std::ops::Range<u32>, command: impl Fn(u64, u32, SlotId) -> Command) -> Result<f64> {
        let total = numbers.len();
        let mut numbers = numbers;
        let mut free: Vec<u32> = (0..self.slots).collect();
        let mut events = Vec::new();
        let mut done = 0;
        let start = Instant::now();
        while done < total {
            while !free.is_empty() && !numbers.is_empty() {
                let (Some(slot), Some(number)) = (free.pop(), numbers.next()) else { break };
                self.port.push(command(slot.into(), number, SlotId(slot))).map_err(|_| "the queue is full")?;
            }
            self.port.flush();
            self.port.poll(&mut events);
            if events.is_empty() {
                std::thread::sleep(Duration::from_micros(200));
            }
            for event in events.drain(..) {
                if let PortEvent::Done { ticket, result } = event {
                    result.map_err(|fault| format!("a command failed: {fault:?}"))?;
                    free.push(ticket as u32);
                    done += 1;
                }
            }
        }
        Ok(total as f64 * f64::from(self.block_bytes) / start.elapsed().as_secs_f64() / 1e6)
    }
}

fn fio(arguments: &[String], column: usize) -> Result<f64> {
    let common = ["--name=x", "--minimal", "--ioengine=io_uring", "--direct=1", "--iodepth"];
    let output = Process::new("fio").args(common).arg(FIO_DEPTH).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let kib: f64 = text.split(';').nth(column).ok_or_else(|| format!("fio said: {text}"))?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// A fresh file, then the same file again.
fn fio_writes(root: &Path, phase_bytes: u64, block_bytes: u32) -> Result<(f64, f64)> {
    const WRITE_BANDWIDTH: usize = 47;
    let file = root.join("fio");
    let mut arguments: Vec<String> = vec![
        format!("--filename={}", file.display()),
        format!("--size={phase_bytes}"),
        format!("--bs={block_bytes}"),
        "--rw=write".into(),
    ];
    let fresh_only = ["--fallocate=none", "--create_on_open=1"].map(String::from);
    let _ = std::fs::remove_file(&file);
    let fresh = fio(&[&arguments[..], &fresh_only].concat(), WRITE_BANDWIDTH)?;
    arguments.push("--overwrite=1".into());
    arguments[3] = "--rw=randwrite".into();
    let over = fio(&arguments, WRITE_BANDWIDTH)?;
    std::fs::remove_file(&file)?;
    Ok((fresh, over))
}

/// Reads each block file below `directory` once.
fn fio_reads(directory: &Path, block_bytes: u32) -> Result<f64> {
    const READ_BANDWIDTH: usize = 6;
    let arguments = [
        format!("--opendir={}", directory.display()),
        format!("--bs={block_bytes}"),
        format!("--filesize={block_bytes}"),
        "--rw=read".into(),
        "--file_service_type=sequential".into(),
        "--openfiles=256".into(),
    ];
    fio(&arguments, READ_BANDWIDTH)
}
