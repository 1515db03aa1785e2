//! `terrace replay`: a request trace through the whole stack, every loaded byte compared with what its key demands.
#![allow(missing_docs, reason = "inside of the binary")]

mod counts;
mod engine;
mod forward;
mod generate;
mod gpu_memory;
mod gpu_pool;
mod keys;
mod mix;
mod options;
mod part;
mod payload;
mod prefix;
mod progress;
mod report;
mod request;
mod rig;
mod samples;
mod schedule;
mod source;
mod stack;
mod trace;
mod waits;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Result;

use engine::{Engine, EngineOptions};
use generate::Generator;
use gpu_pool::GpuPool;
pub use options::ReplayOptions;
use options::Switch;
use part::PartOf;
use progress::Bars;
use report::Report;
use rig::NvmeDir;
use samples::Samples;
use source::Source;
use trace::TraceFile;

/// Replays and prints. Status 1 if a block was wrong or something was left behind.
pub fn run(options: &ReplayOptions) -> Result<ExitCode> {
    let source: Box<dyn Source> = match &options.trace {
        Some(path) => Box::new(TraceFile::open(path, options.tokens_per_block)?),
        None => {
            let requests = options.requests().unwrap_or(0);
            Box::new(Generator::new(options.seed, options.generated_tokens_per_block(), requests))
        }
    };
    let source = match options.part {
        Some(part) => Box::new(PartOf::new(source, part)),
        None => source,
    };
    let nvme_dir = NvmeDir::new(options);
    let tokens_per_block = source.tokens_per_block();
    let config = options.config(tokens_per_block, nvme_dir.path())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut bars = Bars::new(options.requests());
    let (connector, memory) = rig::build(options, &config, &bars)?;
    let gpu_block_bytes = memory.block_bytes();
    let mut samples = Samples::new(options.samples.as_deref(), gpu_block_bytes)?;
    let engine_options = EngineOptions {
        concurrency: options.concurrency as usize,
        step_tokens: options.step_tokens,
        prefill_tokens_per_second: options.prefill_tokens_per_second,
        decode_steps: options.decode_steps,
        tokens_per_block,
        groups: rig::groups(options, &config),
        lossless: options.is_lossless(),
        speed: options.speed,
        requests: options.requests(),
    };
    let pool = GpuPool::new(options.gpu_blocks(), options.gpu_prefix_cache == Switch::On);
    let mut engine = Engine::new(engine_options, connector, memory, pool, source, stop);
    bars.start();
    let start = Instant::now();
    let ran = engine.run(config.deadlines.drain + config.deadlines.cascade, |engine| {
        bars.watch(engine);
        samples.watch(engine);
    });
    let wall = start.elapsed();
    bars.finish();
    let report = Report::new(&engine, gpu_block_bytes, wall);
    engine.shutdown();
    ran?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print_table();
    }
    Ok(if report.is_faulty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
