//! For tests of reader and writer: a tier's parts over a store in memory that lies when it is told to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use terrace_config::{Choice, ObjectConfig};
use terrace_primary::{Key, Region, RegionOptions, SlotId};

use super::super::counters::Counters;
use super::super::id::{SegmentId, Stamp, WriterId};
use super::super::names::Names;
use super::super::port::LoadPlace;
use super::super::record::{SegmentRecord, Shape};
use super::super::requests::Requests;
use super::super::requests::testing::{FaultyStore, TokioClock, test_config};
use super::super::segment::{encode_header, encode_index};
use super::super::shared::Shared;
use super::LoadSink;
use crate::tier::Fault;

/// What the store says of one ranged GET instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    Missing,
    /// The byte at this place of the object is another.
    Flip(u64),
    /// The bytes of another range, said to be the one that was asked for.
    Shifted(u64),
}

/// Lies about ranged GETs in the order in which they are told, and cuts bodies into pieces.
#[derive(Clone, Debug)]
pub(crate) struct Liar {
    pub store: FaultyStore,
    lies: Arc<Mutex<VecDeque<Lie>>>,
    piece: usize,
}

impl Liar {
    pub fn tell(&self, lies: impl IntoIterator<Item = Lie>) {
        self.lies.lock().expect("no test panicked").extend(lies);
    }
}

impl fmt::Display for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Liar")
    }
}

#[async_trait]
impl ObjectStore for Liar {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head || options.range.is_none() {
            return self.store.get_opts(path, options).await;
        }
        let lie = self.lies.lock().expect("no test panicked").pop_front().unwrap_or(Lie::None);
        if lie == Lie::Missing {
            return Err(Error::NotFound { path: path.to_string(), source: "a lie".into() });
        }
        let result = self.store.get_opts(path, options).await?;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let stream = match lie {
            Lie::Flip(_) | Lie::Shifted(_) => {
                let mut bytes = self.store.inner.get(path).await?.bytes().await?.to_vec();
                match lie {
                    Lie::Shifted(by) => bytes.rotate_left(by as usize),
                    Lie::Flip(at) => bytes[at as usize] ^= 1,
                    Lie::None | Lie::Missing => {}
                }
                stream::iter([Ok(Bytes::from(bytes).slice(range.start as usize..range.end as usize))]).boxed()
            }
            Lie::None | Lie::Missing => result.into_stream(),
        };
        let piece = self.piece;
        let cut = move |frame: Result<Bytes>| match frame {
            Ok(bytes) => {
                let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
                stream::iter(pieces).boxed()
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        };
        // A piece a turn: a task that is dropped in between has seen a part.
        let slowly = stream.flat_map(cut).then(|piece| async {
            tokio::task::yield_now().await;
            piece
        });
        Ok(GetResult { payload: GetResultPayload::Stream(slowly.boxed()), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

/// What a slot holds that nothing was written to.
pub(crate) const POISON: u8 = 0xA5;

/// The parts of a tier without its threads.
pub(crate) struct Rig {
    pub shared: Arc<Shared>,
    pub liar: Liar,
    pub block_bytes: u32,
}

impl Rig {
    /// Slots are poisoned. Bodies come in pieces of `piece` bytes.
    pub fn new(block_bytes: u32, slots: u32, piece: usize, tweak: impl FnOnce(&mut ObjectConfig)) -> Self {
        let mut config = test_config();
        tweak(&mut config);
        let liar = Liar { store: FaultyStore::new(), lies: Arc::default(), piece };
        let clock = Arc::new(TokioClock::new());
        let counters = Arc::new(Counters::default());
        let shape = Shape { namespace: [7; 32], block_bytes, key_bytes: 36 };
        let store: Arc<dyn ObjectStore> = Arc::new(liar.clone());
        let requests = Requests::new(store, &config, clock.clone(), clock.clone(), Arc::clone(&counters), 1);
        let options = RegionOptions {
            slots,
            slot_stride: block_bytes.next_multiple_of(4096),
            block_bytes,
            huge_pages: Choice::Off,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 1,
        };
        let region = Region::create(&options, &|_, _| {}).expect("a small region");
        let shared = Arc::new(Shared {
            tier: "object".to_owned(),
            node: "node".to_owned(),
            shape,
            names: Names::new("prefix", &shape.namespace),
            label: None,
            one_thread: false,
            region,
            wall: clock.clone(),
            clock,
            requests,
            counters,
            config,
        });
        let rig = Self { shared, liar, block_bytes };
        for slot in 0..slots {
            rig.poison(SlotId(slot));
        }
        rig
    }

    pub fn poison(&self, slot: SlotId) {
        assert!(self.shared.region.write_slot(slot, &vec![POISON; self.block_bytes as usize]));
    }

    /// What a slot holds.
    pub fn slot(&self, slot: SlotId) -> Vec<u8> {
        let mut bytes = vec![0; self.block_bytes as usize];
        assert!(self.shared.region.read_slot(slot, &mut bytes));
        bytes
    }

    /// The payload of a block: another for each key.
    pub fn payload(&self, number: u64) -> Vec<u8> {
        let word =
            |i: u64| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i.wrapping_mul(0xD6E8_FEB8_6659_FD93)).to_le_bytes();
        (0..).flat_map(word).take(self.block_bytes as usize).collect()
    }

    /// The bytes of a segment of the blocks of these numbers, and its record.
    pub fn segment_bytes(&self, id: u64, blocks: &[u64]) -> (SegmentRecord, Vec<u8>) {
        let shape = &self.shared.shape;
        let id = SegmentId { writer: WriterId(1), number: id };
        let keys = blocks.iter().flat_map(|number| key(*number).as_bytes().to_vec()).collect();
        let crcs = blocks.iter().map(|number| crc32fast::hash(&self.payload(*number))).collect();
        let record = shape.record(id, Stamp(1), keys, crcs).expect("a record");
        let mut bytes = Vec::new();
        for (position, number) in (0..).zip(blocks) {
            let crc32 = record.crc32(position).expect("a position");
            bytes.extend(encode_header(shape, id, position, &key(*number), crc32));
            bytes.extend(self.payload(*number));
        }
        bytes.extend(encode_index(shape, &record));
        (record, bytes)
    }

    /// A segment in the store.
    pub async fn put_segment(&self, id: u64, blocks: &[u64]) -> Arc<SegmentRecord> {
        let (record, bytes) = self.segment_bytes(id, blocks);
        self.put(record.id, bytes).await;
        Arc::new(record)
    }

    /// Any bytes in the place of a segment.
    pub async fn put(&self, id: SegmentId, bytes: Vec<u8>) {
        let path = self.shared.names.segment(id);
        self.liar.store.inner.put(&path, bytes.into()).await.expect("memory takes it");
    }

    /// Places for these positions of a segment, in slots from `slot` on.
    pub fn places(&self, segment: &Arc<SegmentRecord>, positions: &[u32], slot: u32) -> Vec<LoadPlace> {
        let place = |(index, position): (u32, &u32)| LoadPlace {
            index: slot + index,
            key: segment.key(*position).expect("a position"),
            slot: SlotId(slot + index),
            segment: Arc::clone(segment),
            position: *position,
        };
        (0..).zip(positions).map(place).collect()
    }
}

/// The key of a block.
pub(crate) fn key(number: u64) -> Key {
    let mut hash = [3; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    Key::new(&hash, 0).expect("a key")
}

/// All that a load said.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub done: Vec<(u32, std::result::Result<u32, Fault>)>,
    pub lost_blocks: Vec<(SegmentId, u32)>,
    pub lost_segments: Vec<SegmentId>,
}

impl LoadSink for Heard {
    fn done(&mut self, index: u32, outcome: std::result::Result<u32, Fault>) {
        assert!(self.done.iter().all(|(done, _)| *done != index), "{index} is done twice");
        self.done.push((index, outcome));
    }

    fn lost_block(&mut self, segment: SegmentId, position: u32, _key: Key) {
        self.lost_blocks.push((segment, position));
    }

    fn lost_segment(&mut self, id: SegmentId) {
        assert!(!self.lost_segments.contains(&id), "{id} is lost twice");
        self.lost_segments.push(id);
    }
}
