//! What a shard asks of its device, and when it tells the end: over a device that does only what the test says.

use std::sync::Arc;
use std::time::Duration;

use terrace_config::Choice;
use terrace_primary::{Key, Region, RegionOptions, SlotId};
use terrace_tiers::nvme::{
    Cause, Command, Completion, Device, DeviceError, DirEntry, FileOp, InlinePort, Outcome, Placed, PortEvent, RelPath,
    ShardOptions, ShardPort, Step,
};
use terrace_tiers::{Fault, ManualClock, Time};

const NAMESPACE: [u8; 32] = [7; 32];

/// Keeps what it was asked, and ends it when it is told to.
#[derive(Default)]
struct Scripted {
    asked: Vec<(u64, FileOp)>,
    ended: Vec<Completion>,
}

impl Scripted {
    /// The one operation under way, ended with `result`.
    fn end(&mut self, result: Result<Outcome, DeviceError>) -> FileOp {
        assert_eq!(self.asked.len(), 1, "{:?}", self.asked);
        let (tag, op) = self.asked.remove(0);
        self.ended.push(Completion { tag, result });
        op
    }
}

impl Device for Scripted {
    fn depth(&self) -> u32 {
        4
    }

    fn submit(&mut self, tag: u64, op: FileOp) {
        self.asked.push((tag, op));
    }

    fn flush(&mut self) {}

    fn cancel(&mut self, _tag: u64) {}

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.ended);
    }

    fn wait(&mut self, _timeout: Option<Duration>) {}

    fn unfinished(&self) -> u32 {
        (self.asked.len() + self.ended.len()) as u32
    }

    fn make_dir(&mut self, _path: &RelPath) -> Result<(), DeviceError> {
        Ok(())
    }

    fn list_start(&mut self, _path: &RelPath) -> Result<(), DeviceError> {
        Ok(())
    }

    fn list_next(&mut self, _max: usize, _out: &mut Vec<DirEntry>) -> Result<bool, DeviceError> {
        Ok(false)
    }
}

fn port() -> InlinePort<Scripted> {
    let clock = Arc::new(ManualClock::default());
    let options = RegionOptions {
        slots: 4,
        slot_stride: 4096,
        block_bytes: 4096,
        huge_pages: Choice::Off,
        lock_memory: false,
        numa_node: None,
        prefault_threads: 1,
    };
    let region = Region::create(&options, &|_, _| {}).unwrap();
    InlinePort::new(Scripted::default(), region, clock, ShardOptions::new(NAMESPACE))
}

fn poll(port: &mut InlinePort<Scripted>) -> Vec<PortEvent> {
    let mut events = Vec::new();
    port.poll(&mut events);
    events
}

/// Pushes a store and ends its write with `result`; gives the names of the temporary and the final file.
fn store(port: &mut InlinePort<Scripted>, abandon: bool, result: Result<Outcome, DeviceError>) -> (String, String) {
    let key = Key::new(&[1; 32], 0).unwrap();
    let deadline = Time(u64::MAX);
    let command = Command::Store { ticket: 5, key, slot: SlotId(0), crc32: None, recycle: None, deadline };
    port.push(command).unwrap();
    assert_eq!(poll(port), []);
    if abandon {
        port.abandon(5);
        assert_eq!(poll(port), []);
    }
    match port.device_mut().unwrap().end(result) {
        FileOp::Write(write) => (write.temp.as_str().into(), write.target.as_str().into()),
        other => panic!("{other:?}"),
    }
}

/// Ends the removal under way; gives the name.
fn end_removal(port: &mut InlinePort<Scripted>) -> String {
    match port.device_mut().unwrap().end(Ok(Outcome::default())) {
        FileOp::Remove(path) => path.as_str().into(),
        other => panic!("{other:?}"),
    }
}

fn done(result: Result<Placed, Fault>) -> Vec<PortEvent> {
    vec![PortEvent::Done { ticket: 5, result }]
}

#[test]
fn a_failed_store_is_done_when_its_temporary_file_is_gone() {
    let mut port = port();
    let (temp, _) = store(&mut port, false, Err(DeviceError::new(Step::Write, Cause::Errno(5))));
    assert_eq!(poll(&mut port), [], "its bytes are still on the disk");
    assert_eq!(end_removal(&mut port), temp);
    assert_eq!(poll(&mut port), done(Err(Fault::Io)));
    assert_eq!(port.device_mut().unwrap().unfinished(), 0);
}

#[test]
fn a_store_that_was_published_after_it_was_given_up_is_done_when_the_file_is_gone() {
    let mut port = port();
    let (_, target) = store(&mut port, true, Ok(Outcome::default()));
    assert_eq!(poll(&mut port), [], "its bytes are still on the disk");
    assert_eq!(end_removal(&mut port), target);
    assert_eq!(poll(&mut port), done(Err(Fault::Expired)));
    assert_eq!(port.device_mut().unwrap().unfinished(), 0);
}
