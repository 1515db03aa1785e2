//! A small engine that does everything at random, by seed: prefixes shared and extended, chunked prefill, decoding, sliding windows
//! that give blocks away, preemption, aborts in any state, copies that end late or fail, tiers that fail. Every loaded block is
//! compared, and nothing may be held at the end.
//!
//! `TERRACE_SEED=n` replays one seed of every scene.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Random, Rig, Setup, TOKENS, chain};
use terrace_config::MemoryConfig;
use terrace_connector::{
    ConnectorOutput, GpuBlock, GroupKind, HashList, Matched, RequestId, ScheduledRequest, SchedulerHalf, StepPlan,
};
use terrace_tiers::MemoryTier;
use terrace_tiers::wrappers::{FaultRates, Faulty, Slow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Loading,
    Running,
    Held,
}

struct Request {
    hashes: HashList,
    prompt_tokens: u32,
    end_tokens: u32,
    computed_tokens: u32,
    hashes_given: usize,
    tables: Vec<Vec<GpuBlock>>,
    state: State,
    /// Positions that a load was to fill.
    load: std::ops::Range<usize>,
}

struct Engine {
    rig: Rig,
    random: Random,
    kinds: Vec<GroupKind>,
    prompt_only: bool,
    host_engine: bool,
    free: Vec<GpuBlock>,
    requests: BTreeMap<RequestId, Request>,
    next: u64,
    reused: Vec<GpuBlock>,
    loaded_blocks: u64,
    preemptions: u64,
    failed_loads: u64,
}

impl Engine {
    fn new(setup: &Setup, seed: u64) -> Self {
        let mut random = Random(seed);
        let (tier_seed, slots) = (random.next(), setup.slots);
        let rig = Rig::with_tiers(setup, &|region, clock| {
            let memory = MemoryConfig { capacity_bytes: u64::from(region.block_bytes()) * u64::from(slots) * 2 };
            let memory = MemoryTier::new("memory", memory, Arc::clone(region));
            let rates = FaultRates { store: 0.05, load: 0.1, busy: 0.05, unknown: 0.05 };
            let slow = Slow::new(memory, Arc::new(clock.clone()), Duration::from_millis(3));
            vec![Box::new(Faulty::new(slow, rates, tier_seed))]
        });
        {
            let mut behaviour = rig.control.set();
            behaviour.finish_percent = 35;
            behaviour.fail_percent = 4;
            behaviour.queue_entries = 5;
            behaviour.random = Random(random.next());
        }
        Self {
            rig,
            random,
            kinds: setup.kinds.clone(),
            prompt_only: setup.prompt_only,
            host_engine: setup.host_engine,
            free: (0..setup.gpu_blocks).map(GpuBlock).collect(),
            requests: BTreeMap::new(),
            next: 0,
            reused: Vec::new(),
            loaded_blocks: 0,
            preemptions: 0,
            failed_loads: 0,
        }
    }

    /// A request of one of a few families, so that prefixes meet.
    fn arrive(&mut self) {
        let family = u64::from(self.random.below(4));
        let shared = self.random.below(20);
        let own = self.random.below(12);
        let own_seed = u64::from(self.random.below(6)) + 1000;
        let tokens =
            (0..shared).map(|at| family * 100 + u64::from(at)).chain((0..own).map(|at| own_seed * 50 + u64::from(at)));
        let hashes = chain(tokens);
        let end_tokens = (hashes.len() as u32 * TOKENS + self.random.below(TOKENS)).max(1);
        let prompt_tokens = end_tokens - self.random.below(end_tokens.min(9));
        let mut prompt = HashList::new(hashes.hash_bytes());
        let prompt_blocks = (prompt_tokens / TOKENS) as usize;
        (0..prompt_blocks).for_each(|at| prompt.push(hashes.get(at).expect("inside")).expect("equal"));
        let id = self.rig.begin(self.next, prompt_tokens, &prompt);
        self.next += 1;
        let request = Request {
            hashes,
            prompt_tokens,
            end_tokens,
            computed_tokens: 0,
            hashes_given: prompt_blocks,
            tables: vec![Vec::new(); self.kinds.len()],
            state: State::Waiting,
            load: 0..0,
        };
        self.requests.insert(id, request);
    }

    fn take_block(&mut self) -> Option<GpuBlock> {
        if self.free.is_empty() {
            return None;
        }
        let at = self.random.below(self.free.len() as u32) as usize;
        let block = self.free.swap_remove(at);
        self.reused.push(block);
        Some(block)
    }

    /// Position of the first block that group `group` still needs when `tokens` are computed.
    fn first_kept(&self, group: usize, tokens: u32) -> usize {
        match self.kinds[group] {
            GroupKind::FullAttention => 0,
            GroupKind::SlidingWindow { window_tokens } => (tokens.saturating_sub(window_tokens - 1) / TOKENS) as usize,
        }
    }

    /// Waiting requests ask, and some get blocks.
    fn admit(&mut self) {
        let waiting: Vec<RequestId> =
            self.requests.iter().filter(|(_, r)| r.state == State::Waiting).map(|(id, _)| *id).collect();
        for id in waiting {
            let matched = self.rig.matched(id, 0);
            let Matched::Tokens(mut external) = matched else { continue };
            if self.random.chance(10) {
                continue; // No room today; it asks again.
            }
            if external > 0 && self.kinds.len() == 1 && self.random.chance(10) {
                external -= TOKENS;
            }
            let len = external.div_ceil(TOKENS) as usize + self.random.below(3) as usize;
            let wanted = len * self.kinds.len();
            if self.free.len() < wanted {
                continue;
            }
            let mut tables = Vec::new();
            for group in 0..self.kinds.len() {
                let first = self.first_kept(group, external).min(len);
                let table: Vec<GpuBlock> = (0..len)
                    .map(|at| if at < first { GpuBlock::NULL } else { self.take_block().expect("counted") })
                    .collect();
                tables.push(table);
            }
            self.rig.connector.update_state_after_alloc(id, &tables, external).expect("a fitting table");
            let request = self.requests.get_mut(&id).expect("open");
            request.tables = tables;
            request.load = 0..(external / TOKENS) as usize;
            request.state = if external > 0 { State::Loading } else { State::Running };
            request.computed_tokens = 0;
        }
    }

    /// Schedules running requests; preempts others when blocks run out.
    fn schedule(&mut self) -> StepPlan {
        let mut plan = StepPlan::default();
        let running: Vec<RequestId> =
            self.requests.iter().filter(|(_, r)| r.state == State::Running).map(|(id, _)| *id).collect();
        for id in running {
            if self.random.chance(15) || self.requests[&id].state != State::Running {
                continue;
            }
            let request = &self.requests[&id];
            let left = request.prompt_tokens.saturating_sub(request.computed_tokens);
            let tokens = if left > 0 { (1 + self.random.below(40)).min(left) } else { 1 };
            let computed = (request.computed_tokens + tokens).min(request.end_tokens);
            let have = request.tables[0].len();
            let add = (computed.div_ceil(TOKENS) as usize).saturating_sub(have);
            while self.free.len() < add * self.kinds.len() {
                if !self.preempt_one(id, &mut plan) {
                    break;
                }
            }
            if self.free.len() < add * self.kinds.len() {
                continue;
            }
            let mut new_blocks = Vec::new();
            for _ in 0..self.kinds.len() {
                new_blocks.push((0..add).map(|_| self.take_block().expect("counted")).collect::<Vec<_>>());
            }
            let request = self.requests.get_mut(&id).expect("open");
            for (table, new) in request.tables.iter_mut().zip(&new_blocks) {
                table.extend_from_slice(new);
            }
            request.computed_tokens = computed;
            plan.scheduled.push(ScheduledRequest { id, new_blocks, computed_tokens: computed });
        }
        plan
    }

    /// Takes the blocks of a running request that this step does not schedule.
    fn preempt_one(&mut self, except: RequestId, plan: &mut StepPlan) -> bool {
        let candidates: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(id, r)| {
                matches!(r.state, State::Running)
                    && **id != except
                    && !plan.scheduled.iter().any(|scheduled| scheduled.id == **id)
            })
            .map(|(id, _)| *id)
            .collect();
        if candidates.is_empty() {
            return false;
        }
        let id = candidates[self.random.below(candidates.len() as u32) as usize];
        self.free_blocks(id);
        let request = self.requests.get_mut(&id).expect("open");
        request.state = State::Waiting;
        request.computed_tokens = 0;
        plan.preempted.push(id);
        self.preemptions += 1;
        true
    }

    fn free_blocks(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("open");
        for table in &mut request.tables {
            self.free.extend(table.drain(..).filter(|block| *block != GpuBlock::NULL));
        }
    }

    /// The forward pass: new owners overwrite their blocks, then what is scheduled is computed. The KV of earlier blocks is read
    /// by it, so it must be right.
    fn compute(rig: &Rig, requests: &BTreeMap<RequestId, Request>, plan: &StepPlan) {
        for block in &plan.reused {
            // A block that a load of this step fills belongs to the load.
            let loads = requests.values().any(|r| {
                r.state == State::Loading
                    && r.tables.iter().any(|table| table.get(r.load.clone()).is_some_and(|list| list.contains(block)))
            });
            if !loads {
                rig.poison(*block);
            }
        }
        for scheduled in &plan.scheduled {
            let request = &requests[&scheduled.id];
            for (group, table) in request.tables.iter().enumerate() {
                for (position, block) in table.iter().enumerate().take((request.computed_tokens / TOKENS) as usize) {
                    if *block != GpuBlock::NULL {
                        rig.write_block(group, *block, request.hashes.get(position).expect("full block"));
                    }
                }
            }
        }
    }

    fn take(&mut self, output: ConnectorOutput) {
        for id in output.loaded {
            let request = self.requests.get_mut(&id).expect("open");
            if request.state != State::Loading {
                continue;
            }
            for (group, table) in request.tables.iter().enumerate() {
                for position in request.load.clone() {
                    let block = table[position];
                    if block != GpuBlock::NULL {
                        let right = self.rig.holds(group, block, request.hashes.get(position).expect("full block"));
                        assert!(right, "wrong bytes: request {} group {group} position {position}", id.0);
                        self.loaded_blocks += 1;
                    }
                }
            }
            request.computed_tokens = request.load.end as u32 * TOKENS;
            request.state = State::Running;
        }
        for (id, blocks) in output.failed_loads {
            let request = self.requests.get_mut(&id).expect("open");
            assert_eq!(request.state, State::Loading);
            assert!(!blocks.is_empty());
            assert!(blocks.iter().all(|block| request.tables.iter().any(|table| table.contains(block))));
            self.failed_loads += 1;
            // Positions that a window group does not keep cannot be computed here: such a request starts over.
            request.state = State::Running;
            request.computed_tokens = 0;
            if request.tables.iter().flatten().any(|block| *block == GpuBlock::NULL) {
                self.end(id, true);
            }
        }
        for id in output.released {
            assert_eq!(self.requests[&id].state, State::Held);
            self.free_blocks(id);
            self.requests.remove(&id);
        }
    }

    fn end(&mut self, id: RequestId, check: bool) {
        let held = self.rig.connector.request_finished(id).expect("open");
        if held {
            self.requests.get_mut(&id).expect("open").state = State::Held;
        } else {
            self.free_blocks(id);
            self.requests.remove(&id);
        }
        if check {
            self.rig.connector.manager().check().unwrap_or_else(|fault| panic!("{fault}"));
        }
    }

    /// After a step: hashes of blocks that filled, windows that moved, requests that end.
    fn after(&mut self) {
        let ids: Vec<RequestId> = self.requests.keys().copied().collect();
        for id in ids {
            let state = self.requests[&id].state;
            if state == State::Held {
                continue;
            }
            if self.random.chance(2) || (state == State::Running && self.is_complete(id)) {
                self.end(id, false);
                continue;
            }
            if state != State::Running {
                continue;
            }
            let kinds = self.kinds.len();
            let firsts: Vec<usize> =
                (0..kinds).map(|group| self.first_kept(group, self.requests[&id].computed_tokens)).collect();
            let request = self.requests.get_mut(&id).expect("open");
            let full = (request.computed_tokens / TOKENS) as usize;
            if full > request.hashes_given && !self.prompt_only {
                let mut more = HashList::new(request.hashes.hash_bytes());
                (request.hashes_given..full)
                    .for_each(|at| more.push(request.hashes.get(at).expect("full")).expect("equal"));
                request.hashes_given = full;
                self.rig.connector.append_blocks(id, &more).expect("open");
            }
            for (table, first) in request.tables.iter_mut().zip(firsts) {
                for block in table.iter_mut().take(first) {
                    if *block != GpuBlock::NULL {
                        self.free.push(std::mem::replace(block, GpuBlock::NULL));
                    }
                }
            }
        }
    }

    fn is_complete(&self, id: RequestId) -> bool {
        self.requests[&id].computed_tokens >= self.requests[&id].end_tokens
    }

    fn step(&mut self, arrivals: bool) {
        if arrivals && self.requests.len() < 12 && self.random.chance(50) {
            self.arrive();
        }
        self.reused.clear();
        self.admit();
        let mut plan = self.schedule();
        plan.reused = std::mem::take(&mut self.reused);
        let meta = self.rig.build(&plan);
        let requests = &self.requests;
        let output = self.rig.work(meta, |rig| Self::compute(rig, requests, &plan));
        self.take(output);
        self.after();
    }

    fn run(mut self, steps: usize) -> (u64, u64, u64) {
        for step in 0..steps {
            self.step(true);
            if step % 16 == 0 {
                self.rig.connector.manager().check().unwrap_or_else(|fault| panic!("{fault}"));
            }
        }
        for step in 0.. {
            assert!(step < 10_000, "requests do not end");
            if self.requests.is_empty() && !self.rig.connector.has_pending_work() {
                break;
            }
            if self.host_engine {
                // Copies take real time on other threads; steps without work do not.
                std::thread::sleep(Duration::from_millis(1));
            }
            self.step(false);
        }
        assert_eq!(self.free.len(), self.rig.gpu_blocks() as usize, "GPU blocks are lost");
        self.rig.assert_no_leak();
        (self.loaded_blocks, self.preemptions, self.failed_loads)
    }
}

fn scene(name: &str, setup: &Setup, seeds: std::ops::Range<u64>) {
    let seeds = match std::env::var("TERRACE_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds,
    };
    let mut total = (0, 0, 0);
    for seed in seeds {
        let run = std::panic::catch_unwind(|| Engine::new(setup, seed).run(300));
        let Ok(counts) = run else {
            panic!(
                "{name}: seed {seed} failed; again: TERRACE_SEED={seed} cargo test --release -p terrace-connector --test simulation {name}"
            )
        };
        total = (total.0 + counts.0, total.1 + counts.1, total.2 + counts.2);
    }
    println!("{name}: {} blocks loaded, {} preemptions, {} failed loads", total.0, total.1, total.2);
    assert!(total.0 > 500 && total.1 > 20 && (total.2 > 5 || setup.host_engine), "the scene is too tame: {total:?}");
}

const WINDOW: GroupKind = GroupKind::SlidingWindow { window_tokens: 11 };

#[test]
fn full_attention() {
    for (blocks_per_chunk, prompt_only) in [(1, true), (2, false), (8, true)] {
        let setup =
            Setup { blocks_per_chunk, prompt_only, slots: 96 / blocks_per_chunk, gpu_blocks: 90, ..Setup::default() };
        scene("full_attention", &setup, 0..20);
    }
}

#[test]
fn full_attention_and_sliding_window() {
    for (blocks_per_chunk, prompt_only) in [(1, false), (2, true), (8, false)] {
        let kinds = vec![GroupKind::FullAttention, WINDOW];
        let slots = 160 / blocks_per_chunk;
        let setup = Setup { kinds, blocks_per_chunk, prompt_only, slots, gpu_blocks: 120, ..Setup::default() };
        scene("full_attention_and_sliding_window", &setup, 100..120);
    }
}

#[test]
fn three_groups_without_gpu_prefix_cache() {
    let kinds = vec![WINDOW, GroupKind::FullAttention, GroupKind::SlidingWindow { window_tokens: 5 }];
    let setup =
        Setup { kinds, blocks_per_chunk: 2, slots: 100, gpu_blocks: 150, gpu_prefix_cache: false, ..Setup::default() };
    scene("three_groups_without_gpu_prefix_cache", &setup, 200..220);
}

#[test]
fn with_the_host_engine() {
    let setup = Setup { blocks_per_chunk: 2, slots: 48, gpu_blocks: 90, host_engine: true, ..Setup::default() };
    scene("with_the_host_engine", &setup, 300..310);
}
