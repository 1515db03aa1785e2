//! The flush of a preemption: blocks whose store is in flight are handed out again as soon as it is waited for.
#![expect(unsafe_code, reason = "work on streams of the model")]

use std::sync::Arc;

use terrace_kernels::cuda::{Driver, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order, StreamHandle, Token};

use super::Report;
use super::rig::{Place, Rig};

/// Runs the case for each path.
pub fn run(driver: &Arc<dyn Driver>, bytes: usize, choices: &[(&str, PathChoice)], report: &mut Report) {
    for (name, choice) in choices {
        let case = format!("flush at a preemption: path {name}");
        match Rig::new(driver, *choice, bytes, true) {
            Err(CopyError::Unsupported(why)) => report.not_run(&case, &why),
            Err(error) => report.case(&case, || Err(error.to_string())),
            Ok(mut rig) => report.case(&case, || {
                let other = driver.create_stream().map_err(|error| CopyError::from(error).to_string())?;
                let flushed = flushed(&mut rig, other);
                // SAFETY: made above; `flushed` has waited for its work, or the device is lost.
                unsafe {
                    let _ = driver.drain(other);
                    driver.destroy_stream(other);
                }
                flushed
            }),
        }
    }
}

/// The model writes 1 and stores; after the flush another stream, with no order to the store, writes 2. The slots hold 1.
fn flushed(rig: &mut Rig, other: StreamHandle) -> Result<(), String> {
    let told = |error: CopyError| error.to_string();
    let half = rig.bytes / 2;
    for round in 0..8_u8 {
        let _ = rig.host.fill(0, rig.bytes, 0);
        let (before, after) = (2 * round + 1, 2 * round + 2);
        // SAFETY: the rig's memory and stream.
        unsafe { rig.driver.fill(rig.stream, rig.device, rig.bytes, before) }.map_err(|error| told(error.into()))?;
        let order = Order { after: Some(Token::Stream(rig.stream)), ..Order::default() };
        let page = if round % 2 == 0 { 4096 } else { 512 << 10 };
        // A quarter of it goes to memory that is not pinned.
        let places: Vec<Place> = (0..half / page)
            .map(|index| Place { device: index * 2 * page, host: half + index * page, len: page })
            .collect();
        let id = rig.submit(Direction::DeviceToHost, &places, order).map_err(told)?;
        rig.engine.wait(&[id]).map_err(told)?;
        // SAFETY: the rig's memory; the store has ended.
        unsafe {
            rig.driver.fill(other, rig.device, rig.bytes, after).map_err(|error| told(error.into()))?;
            rig.driver.drain(other).map_err(|error| told(error.into()))?;
        }
        rig.finish(id).map_err(told)?;
        let mut found = vec![0; half / page * page];
        let _ = rig.host.read(half, &mut found);
        if let Some(at) = found.iter().position(|byte| *byte != before) {
            return Err(format!("round {round}: byte {at} is {:?}, not {before}", found.get(at)));
        }
    }
    Ok(())
}
