//! A connector over real memory, a copy engine whose timing the test decides, and blocks whose bytes follow from their hash.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod staged;

use std::sync::Arc;
use std::time::Duration;

use staged::{Control, StagedEngine};
use terrace_config::{Choice, Config, Geometry};
use terrace_connector::{
    ConnectorMeta, ConnectorOptions, ConnectorOutput, GpuBlock, GroupKind, HashList, KvCaches, KvTensor, Matched,
    NewRequest, OffloadingConnector, RequestId, ScheduledRequest, SchedulerHalf, StepPlan, TierFilter, WorkerHalf,
    WorkerOutput,
};
use terrace_kernels::{Arena, CopyEngine, HostCopyEngine};
use terrace_primary::{Region, RegionOptions};
use terrace_tiering::TieringOffloadingManager;
use terrace_tiers::{Clock, ManualClock, SecondaryTier};

pub const HASH_BYTES: usize = 16;
pub const TOKENS: u32 = 4;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound.max(1))) as u32
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// What a rig is built of.
pub struct Setup {
    pub kinds: Vec<GroupKind>,
    pub blocks_per_chunk: u32,
    pub slots: u32,
    pub gpu_blocks: u32,
    pub prompt_only: bool,
    pub gpu_prefix_cache: bool,
    /// The real engine with two threads in the place of the staged one.
    pub host_engine: bool,
    /// Lines of `[deadlines]`, `[limits]` and so on.
    pub config: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kinds: vec![GroupKind::FullAttention],
            blocks_per_chunk: 1,
            slots: 64,
            gpu_blocks: 256,
            prompt_only: true,
            gpu_prefix_cache: true,
            host_engine: false,
            config: "",
        }
    }
}

pub type Tiers<'a> = &'a dyn Fn(&Arc<Region>, &ManualClock) -> Vec<Box<dyn SecondaryTier>>;

pub struct Rig {
    pub connector: OffloadingConnector,
    pub control: Control,
    pub region: Arc<Region>,
    pub clock: ManualClock,
    pub arena: Arc<Arena>,
    /// Per group and tensor: offset in the arena and bytes of a page.
    tensors: Vec<Vec<(usize, u32)>>,
    gpu_blocks: u32,
}

/// Pages of group `group`: two tensors of odd sizes, another size in each group.
fn page_bytes(group: usize) -> [u32; 2] {
    [96 + 40 * group as u32, 33]
}

pub fn geometry(setup: &Setup) -> Geometry {
    let groups = setup.kinds.len();
    let largest = (0..groups).map(|group| page_bytes(group).iter().sum::<u32>()).max().unwrap_or(1);
    Geometry {
        block_bytes: largest * setup.blocks_per_chunk,
        tokens_per_block: TOKENS,
        blocks_per_chunk: setup.blocks_per_chunk,
        groups: groups as u32,
        hash_bytes: HASH_BYTES as u8,
    }
}

pub fn options(setup: &Setup) -> ConnectorOptions {
    ConnectorOptions {
        geometry: geometry(setup),
        groups: setup.kinds.clone(),
        gpu_blocks: setup.gpu_blocks,
        offload_prompt_only: setup.prompt_only,
        gpu_prefix_cache: setup.gpu_prefix_cache,
    }
}

pub fn config(setup: &Setup) -> Config {
    let text = format!("[primary]\nblocks = {}\n{}", setup.slots, setup.config);
    let mut config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    config.geometry = geometry(setup);
    config
}

impl Rig {
    pub fn new(setup: &Setup) -> Self {
        Self::with_tiers(setup, &|_, _| Vec::new())
    }

    pub fn with_tiers(setup: &Setup, tiers: Tiers<'_>) -> Self {
        let geometry = geometry(setup);
        let region = Region::create(
            &RegionOptions {
                slots: setup.slots,
                slot_stride: geometry.slot_stride(),
                block_bytes: geometry.block_bytes,
                huge_pages: Choice::Off,
                lock_memory: false,
                numa_node: None,
                prefault_threads: 1,
            },
            &|_, _| {},
        )
        .expect("a region");
        let clock = ManualClock::default();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let manager = TieringOffloadingManager::new(&config(setup), tiers(&region, &clock), shared).expect("a manager");
        let (engine, control) = StagedEngine::new();
        let engine: Box<dyn CopyEngine> =
            if setup.host_engine { Box::new(HostCopyEngine::new(2, 8).expect("threads")) } else { Box::new(engine) };
        let mut connector =
            OffloadingConnector::new(options(setup), manager, Arc::clone(&region), engine).expect("a connector");
        let (mut offset, mut tensors) = (0, Vec::new());
        for group in 0..setup.kinds.len() {
            let mut places = Vec::new();
            for page in page_bytes(group) {
                places.push((offset, page));
                offset += page as usize * setup.gpu_blocks as usize;
            }
            tensors.push(places);
        }
        let arena = Arc::new(Arena::new(offset).expect("an arena"));
        let groups = tensors
            .iter()
            .map(|places| {
                let tensor = |(at, page): &(usize, u32)| {
                    KvTensor::in_arena(&arena, *at, setup.gpu_blocks, *page).expect("inside")
                };
                places.iter().map(tensor).collect()
            })
            .collect();
        connector.register_kv_caches(KvCaches { groups }).expect("fitting caches");
        Self { connector, control, region, clock, arena, tensors, gpu_blocks: setup.gpu_blocks }
    }

    pub fn gpu_blocks(&self) -> u32 {
        self.gpu_blocks
    }

    /// The engine computes a block: its bytes follow from hash, group and tensor.
    pub fn write_block(&self, group: usize, block: GpuBlock, hash: &[u8]) {
        for (tensor, (at, page)) in self.tensors[group].iter().enumerate() {
            let at = at + block.0 as usize * *page as usize;
            assert!(self.arena.write(at, &content(hash, group, tensor, *page)));
        }
    }

    /// Whether a block holds what its hash demands.
    pub fn holds(&self, group: usize, block: GpuBlock, hash: &[u8]) -> bool {
        self.tensors[group].iter().enumerate().all(|(tensor, (at, page))| {
            let mut found = vec![0; *page as usize];
            assert!(self.arena.read(at + block.0 as usize * *page as usize, &mut found));
            found == content(hash, group, tensor, *page)
        })
    }

    /// A new owner writes something of its own into the block, in all groups.
    pub fn poison(&self, block: GpuBlock) {
        for (at, page) in self.tensors.iter().flatten() {
            assert!(self.arena.fill(at + block.0 as usize * *page as usize, *page as usize, 0xA5));
        }
    }

    pub fn begin(&mut self, id: u64, prompt_tokens: u32, hashes: &HashList) -> RequestId {
        let id = RequestId(id);
        let request = NewRequest { id, prompt_tokens, block_hashes: hashes.clone(), tiers: TierFilter::ALL };
        self.connector.new_request(request).expect("a new request");
        id
    }

    pub fn matched(&mut self, id: RequestId, computed: u32) -> Matched {
        self.connector.get_num_new_matched_tokens(id, computed).expect("an open request")
    }

    pub fn build(&mut self, plan: &StepPlan) -> ConnectorMeta {
        self.connector.build_connector_meta(plan).expect("a possible plan")
    }

    /// The worker's part of a step; `compute` is the forward pass.
    pub fn work(&mut self, meta: ConnectorMeta, compute: impl FnOnce(&Self)) -> ConnectorOutput {
        self.connector.handle_preemptions(&meta).expect("flush");
        self.connector.start_load_kv(meta).expect("start");
        compute(self);
        self.connector.wait_for_save().expect("save");
        let mut output = WorkerOutput::default();
        self.connector.get_finished(&mut output).expect("finished");
        self.clock.advance(Duration::from_millis(1));
        self.connector.update_connector_output(output).expect("known jobs")
    }

    pub fn step(&mut self, plan: &StepPlan) -> ConnectorOutput {
        let meta = self.build(plan);
        self.work(meta, |_| {})
    }

    /// Steps without work until nothing is in flight.
    pub fn settle(&mut self) -> ConnectorOutput {
        let mut all = ConnectorOutput::default();
        for _ in 0..200 {
            let output = self.step(&StepPlan::default());
            all.loaded.extend(output.loaded);
            all.failed_loads.extend(output.failed_loads);
            all.released.extend(output.released);
            if self.connector.transfers_in_flight() == 0 && !self.connector.has_pending_work() {
                return all;
            }
        }
        panic!("something never ends: {} transfers", self.connector.transfers_in_flight());
    }

    /// A request that computes all its blocks in one step at GPU blocks `first..`, is stored and ends.
    pub fn store_all(&mut self, id: u64, hashes: &HashList, first: u32) {
        let tokens = hashes.len() as u32 * TOKENS + 1;
        let request = self.begin(id, tokens, hashes);
        let table = self.table(first, hashes.len() as u32 + 1);
        let plan = StepPlan {
            scheduled: vec![ScheduledRequest { id: request, new_blocks: table.clone(), computed_tokens: tokens }],
            reused: table[0].clone(),
            ..StepPlan::default()
        };
        let meta = self.build(&plan);
        self.work(meta, |rig| rig.compute(&table, hashes, 0));
        self.settle();
        assert!(!self.connector.request_finished(request).expect("open"), "nothing is in flight");
    }

    /// Computes the blocks of a table from position `from` on.
    pub fn compute(&self, table: &[Vec<GpuBlock>], hashes: &HashList, from: usize) {
        for (group, blocks) in table.iter().enumerate() {
            for (position, block) in blocks.iter().enumerate().skip(from) {
                if let Some(hash) = hashes.get(position)
                    && *block != GpuBlock::NULL
                {
                    self.write_block(group, *block, hash);
                }
            }
        }
    }

    /// A table of `len` positions: group g's blocks start at `first + g * len`.
    pub fn table(&self, first: u32, len: u32) -> Vec<Vec<GpuBlock>> {
        (0..self.tensors.len() as u32)
            .map(|group| (0..len).map(|at| GpuBlock(first + group * len + at)).collect())
            .collect()
    }

    /// After everything has ended: nothing holds anything.
    pub fn assert_no_leak(&mut self) {
        assert_eq!(self.connector.transfers_in_flight(), 0, "transfers");
        assert_eq!(self.connector.requests_open(), 0, "requests");
        assert_eq!(self.connector.counters().inconsistencies, 0, "inconsistencies");
        let manager = self.connector.manager();
        manager.check().unwrap_or_else(|fault| panic!("{fault}"));
        let stats = manager.stats();
        assert_eq!((stats.readers, stats.writing, stats.holds, stats.requests), (0, 0, 0, 0), "{stats:?}");
        assert_eq!(stats.completions_refused, 0, "{stats:?}");
    }
}

/// The hashes of a chain of blocks: each follows from the one before and its token.
pub fn chain(tokens: impl IntoIterator<Item = u64>) -> HashList {
    let mut hashes = HashList::new(HASH_BYTES);
    let mut state = 7u64;
    for token in tokens {
        state = Random(state ^ token.wrapping_mul(0x1234_5678_9ABC_DEF1)).next();
        let mut hash = [0; HASH_BYTES];
        hash[..8].copy_from_slice(&state.to_be_bytes());
        hash[8..].copy_from_slice(&Random(state).next().to_be_bytes());
        hashes.push(&hash).expect("16 bytes");
    }
    hashes
}

fn content(hash: &[u8], group: usize, tensor: usize, len: u32) -> Vec<u8> {
    let mut start = [0; 8];
    start.copy_from_slice(&hash[..8]);
    let mut random = Random(u64::from_le_bytes(start) ^ ((group as u64) << 8) ^ tensor as u64);
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len as usize).collect()
}

pub fn scheduled(id: RequestId, new_blocks: Vec<Vec<GpuBlock>>, computed_tokens: u32) -> StepPlan {
    StepPlan {
        reused: new_blocks.iter().flatten().copied().filter(|block| *block != GpuBlock::NULL).collect(),
        scheduled: vec![ScheduledRequest { id, new_blocks, computed_tokens }],
        ..StepPlan::default()
    }
}
