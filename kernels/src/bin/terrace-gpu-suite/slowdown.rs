//! How much copies slow a matrix product down: alone, beside copies by the device's copy engines, beside the kernel, in turn.
#![expect(unsafe_code, reason = "events on the model's stream")]

use std::sync::Arc;
use std::time::Instant;

use terrace_kernels::cuda::{DeviceEvent, Driver, EventKind, Path, PathChoice};
use terrace_kernels::{CopyEngine, CopyError, Direction, Order};

use super::figures::{Figures, Scale};
use super::matmul::Model;
use super::rig::{Place, Rig};

/// Copies in flight in each direction.
const DEPTH: usize = 4;

/// One way to copy meanwhile.
struct Beside {
    name: String,
    rig: Rig,
    len: usize,
    slowdowns: Vec<f64>,
    rates: Vec<f64>,
}

pub fn run(driver: &Arc<dyn Driver>, scale: &Scale, figures: &mut Figures) -> Result<(), String> {
    measure(driver, scale, figures).map_err(|error| error.to_string())
}

fn measure(driver: &Arc<dyn Driver>, scale: &Scale, figures: &mut Figures) -> Result<(), CopyError> {
    let model = Model::new(driver, scale.product)?;
    if !model.multiplies() {
        println!("  this device runs no kernels of others: memory is set in place of products");
    }
    let dma = if driver.facts().has_batch { Path::Batch } else { Path::Runs };
    let mut besides = Vec::new();
    for (path, len) in [(dma, 2 << 20), (dma, 64 << 10), (Path::Kernel, 64 << 10), (Path::Kernel, 16 << 10)] {
        if len * 8 > scale.bytes {
            continue;
        }
        let name = format!("copies both ways by {path:?}, runs of {} KiB", len >> 10);
        match Rig::new(driver, PathChoice::Only(path), scale.bytes, false) {
            Ok(rig) => besides.push(Beside { name, rig, len, slowdowns: Vec::new(), rates: Vec::new() }),
            Err(CopyError::Unsupported(why)) => println!("NOT RUN matrix product beside {name}: {why}"),
            Err(other) => return Err(other),
        }
    }
    let mut alone = Vec::new();
    for round in 0..=scale.rounds {
        let own = products(driver, &model, scale.products, None)?.0;
        for beside in &mut besides {
            let (seconds, bytes) = products(driver, &model, scale.products, Some((&mut beside.rig, beside.len)))?;
            // The first round warms up.
            if round > 0 {
                beside.slowdowns.push((seconds / own - 1.0) * 100.0);
                beside.rates.push(bytes as f64 / seconds / 1e9);
            }
        }
        if round > 0 {
            alone.push(own);
        }
    }
    let [m, n, k] = scale.product;
    let rate = model.operations() * scale.products as f64 / median(&mut alone) / 1e12;
    figures.tell(format_args!("bf16 matrix product {m} x {n} x {k} alone: {rate:.1} TFLOP/s"));
    for beside in &mut besides {
        let slowdown = median(&mut beside.slowdowns);
        let rate = median(&mut beside.rates);
        figures.tell(format_args!(
            "bf16 matrix product beside {}: {slowdown:.2} % slower, {rate:.1} GB/s copied",
            beside.name
        ));
        if !beside.name.contains("Kernel") {
            let target = format!("below 2 % slower beside {}", beside.name);
            figures.target(&target, slowdown < 2.0, format_args!("{slowdown:.2} %"));
        }
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Seconds that the products take, and bytes that were copied meanwhile.
fn products(
    driver: &Arc<dyn Driver>,
    model: &Model,
    count: usize,
    mut beside: Option<(&mut Rig, usize)>,
) -> Result<(f64, u64), CopyError> {
    let end = DeviceEvent::new(driver, EventKind::Private)?;
    let mut bytes = 0;
    if let Some((rig, len)) = &mut beside {
        // Copies run when the first product begins.
        keep_busy(rig, *len)?;
    }
    let began = Instant::now();
    for _ in 0..count {
        model.submit()?;
    }
    // SAFETY: the model's stream is alive and of this device.
    unsafe { end.record(model.stream)? };
    while !end.is_done()? {
        if let Some((rig, len)) = &mut beside {
            bytes += keep_busy(rig, *len)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    if let Some((rig, _)) = &mut beside {
        rig.engine.drain();
        rig.engine.poll(&mut Vec::new());
    }
    Ok((seconds, bytes))
}

/// Submits until `DEPTH` copies a direction are in flight; bytes of those that ended.
fn keep_busy(rig: &mut Rig, len: usize) -> Result<u64, CopyError> {
    let mut done = Vec::new();
    rig.engine.poll(&mut done);
    let mut bytes = 0;
    for copy in done {
        copy.result?;
        bytes += copy.bytes;
    }
    let (half, batch) = (rig.bytes / 2, (rig.bytes / 8 / len).clamp(1, 512));
    while rig.engine.in_flight() + 2 <= 2 * DEPTH {
        for (direction, area) in [(Direction::DeviceToHost, 0), (Direction::HostToDevice, half)] {
            let pages: Vec<Place> = (0..batch)
                .map(|page| Place { device: area + page * 2 * len, host: area + page * 2 * len, len })
                .collect();
            rig.submit(direction, &pages, Order::default())?;
        }
    }
    Ok(bytes)
}
