//! A device without room.
#![expect(unsafe_code, reason = "giving device memory back")]

use std::sync::Arc;

use terrace_kernels::cuda::{CudaCopyEngine, CudaOptions, Driver, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order};

use super::Report;
use super::rig::{Place, Rig};

/// The largest piece that is asked for, the smallest, and as many at most.
const LARGEST: usize = 64 << 30;
const SMALLEST: usize = 2 << 20;
const MOST: usize = 4096;

pub fn run(driver: &Arc<dyn Driver>, bytes: usize, report: &mut Report) {
    report.case("out of memory: more than any device has is refused by name", || {
        match driver.allocate(1 << 46).map_err(CopyError::from) {
            Err(CopyError::OutOfMemory(_)) => Ok(()),
            Err(other) => Err(format!("not told as out of memory: {other}")),
            Ok(_) => Err("64 TiB were given".to_owned()),
        }
    });
    report.case("out of memory: an engine goes on while the device is full, and after", || full(driver, bytes));
}

fn full(driver: &Arc<dyn Driver>, bytes: usize) -> Result<(), String> {
    let mut rig = Rig::new(driver, PathChoice::Auto, bytes, true).map_err(|error| error.to_string())?;
    let mut held = Vec::new();
    let filled = fill(driver, &mut held);
    let went_on = filled.and_then(|()| {
        println!("  {} allocations fill the device", held.len());
        // Another engine needs little, and says so if it cannot have that.
        match CudaCopyEngine::new(driver, Vec::new(), &CudaOptions::default()) {
            Ok(engine) => println!("  another engine is built all the same: {}", engine.describe()),
            Err(CopyError::OutOfMemory(why)) => println!("  another engine is refused: {why}"),
            Err(other) => return Err(format!("not told as out of memory: {other}")),
        }
        copies(&mut rig, 3)
    });
    for address in held {
        // SAFETY: allocated here, used by nothing.
        unsafe { driver.free(address) };
    }
    went_on?;
    copies(&mut rig, 4)?;
    let mut again = Rig::new(driver, PathChoice::Auto, bytes, true).map_err(|error| error.to_string())?;
    copies(&mut again, 5)
}

/// Takes all memory of the device.
fn fill(driver: &Arc<dyn Driver>, held: &mut Vec<usize>) -> Result<(), String> {
    let mut piece = LARGEST;
    while piece >= SMALLEST {
        match driver.allocate(piece).map_err(CopyError::from) {
            Ok(address) if held.len() < MOST => held.push(address),
            Ok(address) => {
                held.push(address);
                return Err(format!("{MOST} allocations do not fill the device"));
            }
            Err(CopyError::OutOfMemory(_)) => piece /= 2,
            Err(other) => return Err(format!("not told as out of memory: {other}")),
        }
    }
    Ok(())
}

fn copies(rig: &mut Rig, value: u8) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let pages: Vec<Place> = (0..8).map(|page| Place { device: page * 9000, host: page * 9000, len: 5000 }).collect();
    rig.fill_device(value).map_err(told)?;
    let id = rig.submit(Direction::DeviceToHost, &pages, Order::default()).map_err(told)?;
    rig.finish(id).map_err(told)?;
    for page in pages {
        let mut found = vec![0; page.len];
        let _ = rig.host.read(page.host, &mut found);
        if found.iter().any(|byte| *byte != value) {
            return Err(format!("{page:?} does not hold {value}"));
        }
    }
    Ok(())
}
