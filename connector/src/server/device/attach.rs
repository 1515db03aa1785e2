//! What a worker hands over: checked, then opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_kernels::CopyError;
use terrace_kernels::cuda::{
    CudaCopyEngine, DeviceEvent, Driver, EventKind, ForeignMemory, IPC_HANDLE_BYTES, MemoryHandle,
};
use terrace_kernels::layout::{PageTensor, PagedLayout};

use super::shared::DeviceShare;
use crate::protocol::{Attach, AttachReply, Memory, Page};
use crate::server::refusal::Refusal;

/// Everything of the driver that belongs to one worker.
pub(super) struct Attached {
    // Dropped first: it drains its streams.
    pub engine: CudaCopyEngine,
    pub layout: PagedLayout,
    pub null_block: Option<u32>,
    /// The worker's: recorded by it before each `Copy`.
    pub store_ready: DeviceEvent,
    pub load_ready: DeviceEvent,
    /// The daemon's: recorded behind the copies.
    pub stored: DeviceEvent,
    pub loaded: DeviceEvent,
    /// The mappings that `layout` points to.
    _memories: Vec<ForeignMemory>,
}

/// Opens a worker's memory and events. May take hundreds of milliseconds. What fails leaves nothing open.
pub(super) fn open(share: &DeviceShare, attach: &Attach) -> Result<(Attached, AttachReply), Refusal> {
    check(attach, share.block_bytes())?;
    let device = bytes("device", &attach.device)?;
    let store_ready = bytes("store_ready", &attach.store_ready)?;
    let load_ready = bytes("load_ready", &attach.load_ready)?;
    let (driver, pins) = share.open(device).map_err(refused("device"))?;
    let mut engine = CudaCopyEngine::new(&driver, vec![pins], share.engine()).map_err(refused("device"))?;
    let memories = open_memories(&driver, &attach.memories)?;
    for (base, len) in spans(&memories, &attach.memories) {
        engine.add_memory(base, len).map_err(refused("memories"))?;
    }
    let pages = |group: &Vec<Page>| group.iter().map(|page| tensor(page, &memories)).collect::<Result<Vec<_>, _>>();
    let groups = attach.groups.iter().map(pages).collect::<Result<Vec<_>, _>>()?;
    let (part_offset, part_bytes) = (attach.part_offset as usize, attach.part_bytes as usize);
    let layout = PagedLayout::new(groups, share.blocks_per_chunk(), part_offset, part_bytes);
    let event = |name, exported| DeviceEvent::open(&driver, exported).map_err(refused(name));
    let own = || DeviceEvent::new(&driver, EventKind::Shared).map_err(refused("the daemon's event"));
    let attached = Attached {
        engine,
        layout: layout.map_err(refused("groups"))?,
        null_block: attach.null_block,
        store_ready: event("store_ready", &store_ready)?,
        load_ready: event("load_ready", &load_ready)?,
        stored: own()?,
        loaded: own()?,
        _memories: memories,
    };
    let export = |event: &DeviceEvent| event.export().map_err(refused("the daemon's event"));
    let reply = AttachReply { stored: export(&attached.stored)?.to_vec(), loaded: export(&attached.loaded)?.to_vec() };
    Ok((attached, reply))
}

/// What can be checked without a driver.
fn check(attach: &Attach, block_bytes: u32) -> Result<(), Refusal> {
    let end = u64::from(attach.part_offset) + u64::from(attach.part_bytes);
    if end > block_bytes.into() {
        return Err(Refusal::invalid(format!(
            "a part of {} bytes from byte {} on of slots of {block_bytes} bytes",
            attach.part_bytes, attach.part_offset
        )));
    }
    for (group, page) in attach.groups.iter().enumerate().flat_map(|(at, group)| group.iter().map(move |p| (at, p))) {
        let memory = attach.memories.get(page.memory as usize);
        let len = memory.and_then(|memory| memory.allocation_bytes.checked_sub(memory.offset));
        let pages = u64::from(page.num_blocks).checked_sub(1).and_then(|steps| steps.checked_mul(page.page_stride));
        let end = pages.and_then(|pages| pages.checked_add(page.page_bytes.into()));
        let end = end.and_then(|end| end.checked_add(page.offset));
        let is_inside = end.zip(len).is_some_and(|(end, len)| end <= len);
        if !is_inside || page.page_bytes == 0 || page.page_stride < page.page_bytes.into() {
            return Err(Refusal::invalid(format!("group {group}: {page:?} does not lie in its memory")));
        }
    }
    Ok(())
}

fn bytes<const N: usize>(name: &str, bytes: &[u8]) -> Result<[u8; N], Refusal> {
    let wrong = || Refusal::invalid(format!("{name} has {} bytes, it must have {N}", bytes.len()));
    bytes.try_into().map_err(|_| wrong())
}

fn refused(what: &str) -> impl FnOnce(CopyError) -> Refusal {
    move |error| Refusal::invalid(format!("{what}: {error}"))
}

fn open_memories(driver: &Arc<dyn Driver>, memories: &[Memory]) -> Result<Vec<ForeignMemory>, Refusal> {
    let open = |(at, memory): (usize, &Memory)| {
        let name = format!("memories[{at}]");
        let handle: [u8; IPC_HANDLE_BYTES] = bytes(&name, &memory.handle)?;
        let Memory { offset, allocation_bytes, .. } = *memory;
        let handle = MemoryHandle { handle, offset, allocation_bytes };
        ForeignMemory::open(driver, &handle).map_err(refused(&name))
    };
    memories.iter().enumerate().map(open).collect()
}

/// What the engine may touch: one span for each allocation, though several memories may lie in it.
fn spans(memories: &[ForeignMemory], told: &[Memory]) -> Vec<(usize, usize)> {
    let mut spans: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (memory, told) in memories.iter().zip(told) {
        let allocation = memory.base().wrapping_sub(told.offset as usize);
        let (start, end) = (memory.base(), memory.base().saturating_add(memory.len()));
        let span = spans.entry(allocation).or_insert((start, end));
        *span = (span.0.min(start), span.1.max(end));
    }
    spans.into_values().map(|(start, end)| (start, end - start)).collect()
}

/// A tensor at its address here. Checked before.
fn tensor(page: &Page, memories: &[ForeignMemory]) -> Result<PageTensor, Refusal> {
    let wrong = || Refusal::invalid(format!("{page:?} does not lie in its memory"));
    let memory = memories.get(page.memory as usize).ok_or_else(wrong)?;
    let offset = usize::try_from(page.offset).map_err(|_| wrong())?;
    Ok(PageTensor {
        base: memory.base().checked_add(offset).ok_or_else(wrong)?,
        num_blocks: page.num_blocks,
        page_bytes: page.page_bytes as usize,
        page_stride: usize::try_from(page.page_stride).map_err(|_| wrong())?,
    })
}
