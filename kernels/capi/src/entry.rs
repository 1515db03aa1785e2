//! The functions of the header: pointers are checked and read here, and no panic gets past.
#![expect(unsafe_code, reason = "a C interface")]
#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "said once, in include/terrace_copy.h: pointers are null or valid for what the header says"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use terrace_kernels::layout::{PageTensor, SlotTable};
use terrace_kernels::{Direction, Order, StreamHandle};

use crate::abi::{self, Ended, Job, Options, Pages, Points, RegionState, Slots, code};
use crate::open::Plain;
use crate::refusal::Refusal;
use crate::registry::{close, keep, with};
use crate::session::{LayoutParts, Lists, Step};

/// How long a wait looks again without sleeping, and sleeps then.
const SPIN: Duration = Duration::from_micros(100);
const SLEEP: Duration = Duration::from_micros(50);
/// Bytes of a text argument at most.
const MOST_TEXT: usize = 4096;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn tell(text: &str) {
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = MESSAGE.try_with(|message| *message.borrow_mut() = text);
}

/// Runs a call. Its code.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Refusal>) -> i32 {
    let refusal = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return code::OK,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Refusal::new(code::INTERNAL, format!("a fault of Terrace: {text}"))
        }
    };
    tell(&refusal.text);
    refusal.code
}

fn usable<T>(pointer: *const T, what: &str) -> Result<(), Refusal> {
    if pointer.is_null() {
        return Err(Refusal::invalid(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Refusal::invalid(format!("{what} is not aligned for its type")));
    }
    Ok(())
}

/// Where a result goes.
struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// The pointer is null or valid for writing a `T` during the call.
    unsafe fn new(pointer: *mut T, what: &str) -> Result<Self, Refusal> {
        usable(pointer, what).map(|()| Self(pointer))
    }

    fn put(&self, value: T) {
        // SAFETY: neither null nor misaligned, and writable by the contract of `new`.
        unsafe { self.0.write(value) };
    }
}

/// # Safety
/// The pointer is null or valid for reading `len` elements during the call.
unsafe fn list<'a, T>(pointer: *const T, len: u32, what: &str) -> Result<&'a [T], Refusal> {
    if len == 0 {
        return Ok(&[]);
    }
    usable(pointer, what)?;
    if (len as usize).checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Refusal::invalid(format!("{what} has {len} entries")));
    }
    // SAFETY: as above; nobody writes it during the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len as usize) })
}

/// # Safety
/// The pointer is null or valid for reading during the call.
unsafe fn value<T: Copy>(pointer: *const T, what: &str) -> Result<T, Refusal> {
    usable(pointer, what)?;
    // SAFETY: as above.
    Ok(unsafe { pointer.read() })
}

/// # Safety
/// The pointer is null or a text that ends with zero.
unsafe fn text(pointer: *const c_char, what: &str) -> Result<Option<Vec<u8>>, Refusal> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as above.
    let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    if bytes.len() > MOST_TEXT {
        return Err(Refusal::invalid(format!("{what} has {} bytes, more than {MOST_TEXT}", bytes.len())));
    }
    Ok(Some(bytes.to_vec()))
}

/// # Safety
/// As the header says of `terrace_copy_options`.
unsafe fn options(pointer: *const Options) -> Result<Plain, Refusal> {
    usable(pointer, "options")?;
    // SAFETY: the first field is always there.
    let size = unsafe { (&raw const (*pointer).size).read() } as usize;
    // Fields that came later are zero for who does not know them. Fields that are not known here must be.
    if size < offset_of!(Options, device) || size > MOST_TEXT {
        return Err(Refusal::invalid(format!("options of size {size}: write sizeof(terrace_copy_options)")));
    }
    let known = size.min(size_of::<Options>());
    let mut read = MaybeUninit::<Options>::zeroed();
    // SAFETY: the caller has `size` bytes there, and `read` has room for `known`; what is beyond `known` is somebody's newer field.
    let (options, more) = unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), read.as_mut_ptr().cast::<u8>(), known);
        // Zero is a good value of each field.
        (read.assume_init(), std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known))
    };
    if more.iter().any(|byte| *byte != 0) {
        return Err(Refusal::unsupported(
            "options that this library does not know: it is older than the caller's header",
        ));
    }
    // SAFETY: texts of the caller.
    let (device, nvrtc, cache_dir) = unsafe {
        (text(options.device, "device")?, text(options.nvrtc, "nvrtc")?, text(options.cache_dir, "cache_dir")?)
    };
    let path = |bytes: Vec<u8>| PathBuf::from(OsStr::from_bytes(&bytes));
    Ok(Plain {
        kind: options.kind,
        path: options.path,
        flags: options.flags,
        device: device.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        nvrtc: nvrtc.map(path),
        cache_dir: cache_dir.map(path),
        piece_bytes: options.piece_bytes,
        kernel_blocks: options.kernel_blocks,
        queue_entries: options.queue_entries,
        host_threads: options.host_threads,
        register_threads: options.register_threads,
    })
}

fn number(value: u64, what: &str) -> Result<usize, Refusal> {
    usize::try_from(value).map_err(|_| Refusal::invalid(format!("{what} {value:#x} is beyond the address space")))
}

fn unused(reserved: u32) -> Result<(), Refusal> {
    if reserved == 0 { Ok(()) } else { Err(Refusal::invalid("a reserved field is not 0")) }
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_abi_version() -> u32 {
    abi::ABI
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_message() -> *const c_char {
    // The text stays where it is until this thread tells another one.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_open(from: *const Options, engine: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's pointers, as the header says.
        let (plain, out) = unsafe { (options(from)?, Out::new(engine, "engine")?) };
        out.put(keep(plain.open()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_close(engine: u64) -> i32 {
    call(|| close(engine))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_kind(engine: u64, kind: *mut u32) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(kind, "kind")? };
        with(engine, |session| {
            out.put(session.kind());
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_device_uuid(engine: u64, uuid: *mut [u8; 16]) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(uuid, "uuid")? };
        with(engine, |session| {
            out.put(session.driver()?.facts().uuid);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_stats(
    engine: u64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let length = unsafe { Out::new(length, "length")? };
        if capacity > 0 {
            usable(buffer, "buffer")?;
        }
        let text = with(engine, |session| Ok(session.stats()))?;
        length.put(text.len());
        if text.len() >= capacity {
            return Err(Refusal::new(code::FULL, format!("{} bytes for {} and a zero", capacity, text.len())));
        }
        // SAFETY: `capacity` bytes, more than the text has.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len());
            buffer.add(text.len()).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_register_region(engine: u64, base: u64, len: u64, region: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(region, "region")? };
        out.put(with(engine, |session| session.register_region(base, len))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_region_progress(engine: u64, region: u64, state: *mut RegionState) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(state, "state")? };
        out.put(with(engine, |session| session.region_state(region))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_unregister_region(engine: u64, region: u64) -> i32 {
    call(|| with(engine, |session| session.unregister_region(region)))
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_add_memory(engine: u64, base: u64, len: u64) -> i32 {
    call(|| with(engine, |session| session.add_memory(base, len)))
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_remove_memory(engine: u64, base: u64) -> i32 {
    call(|| with(engine, |session| session.remove_memory(base)))
}

/// # Safety
/// As the header says of the lists.
unsafe fn groups(
    pages: *const Pages,
    n_pages: u32,
    group_lens: *const u32,
    n_groups: u32,
) -> Result<Vec<Vec<PageTensor>>, Refusal> {
    // SAFETY: the caller's lists.
    let (mut pages, lens) = unsafe { (list(pages, n_pages, "pages")?, list(group_lens, n_groups, "group_lens")?) };
    let mut groups = Vec::new();
    for len in lens {
        let split = pages.split_at_checked(*len as usize);
        let (own, rest) = split.ok_or_else(|| Refusal::invalid("group_lens adds up to more than n_pages"))?;
        pages = rest;
        let tensor = |page: &Pages| {
            unused(page.reserved)?;
            Ok(PageTensor {
                base: number(page.base, "base")?,
                num_blocks: page.num_blocks,
                page_bytes: number(page.page_bytes, "page_bytes")?,
                page_stride: number(page.page_stride, "page_stride")?,
            })
        };
        groups.push(own.iter().map(tensor).collect::<Result<Vec<_>, Refusal>>()?);
    }
    if !pages.is_empty() {
        return Err(Refusal::invalid("group_lens adds up to less than n_pages"));
    }
    Ok(groups)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_add_layout(
    engine: u64,
    pages: *const Pages,
    n_pages: u32,
    group_lens: *const u32,
    n_groups: u32,
    blocks_per_chunk: u32,
    part_offset: u64,
    part_bytes: u64,
    null_block: i64,
    layout: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's pointers, as the header says.
        let (out, groups) = unsafe { (Out::new(layout, "layout")?, groups(pages, n_pages, group_lens, n_groups)?) };
        let parts = LayoutParts { groups, blocks_per_chunk, part_offset, part_bytes, null_block };
        out.put(with(engine, |session| session.add_layout(parts))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_remove_layout(engine: u64, layout: u64) -> i32 {
    call(|| with(engine, |session| session.remove_layout(layout)))
}

/// # Safety
/// As the header says of `terrace_copy_job`.
unsafe fn lists<'a>(job: &Job) -> Result<Lists<'a>, Refusal> {
    unused(job.reserved)?;
    // SAFETY: the caller's lists.
    unsafe {
        Ok(Lists {
            id: job.id,
            block_ids: list(job.block_ids, job.n_block_ids, "block_ids")?,
            group_sizes: list(job.group_sizes, job.n_groups, "group_sizes")?,
            block_indices: list(job.block_indices, job.n_groups, "block_indices")?,
            slots: list(job.slots, job.n_slots, "slots")?,
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_submit(
    engine: u64,
    layout: u64,
    slots: *const Slots,
    direction: u32,
    jobs: *const Job,
    n_jobs: u32,
    order: *const Points,
    results: *mut i32,
) -> i32 {
    call(|| {
        // SAFETY: the caller's pointers, as the header says.
        let (slots, jobs) = unsafe { (value(slots, "slots")?, list(jobs, n_jobs, "jobs")?) };
        // SAFETY: as above.
        let points = if order.is_null() { None } else { Some(unsafe { value(order, "order")? }) };
        unused(slots.reserved)?;
        if n_jobs > 0 {
            usable(results, "results")?;
        }
        let table = SlotTable {
            base: number(slots.base, "base")?,
            stride: number(slots.stride, "stride")?,
            slots: slots.slots,
        };
        let direction = match direction {
            abi::STORE => Direction::DeviceToHost,
            abi::LOAD => Direction::HostToDevice,
            other => return Err(Refusal::invalid(format!("direction {other}: 0 (store) or 1 (load)"))),
        };
        with(engine, |session| {
            let order = points.as_ref().map_or(Ok(Order::default()), |points| session.order(points))?;
            let step = Step { layout, table, direction, order };
            session.check(&step)?;
            session.collect();
            let mut first = None;
            for (index, job) in jobs.iter().enumerate() {
                // SAFETY: the caller's lists, as the header says.
                let submitted = unsafe { lists(job) }.and_then(|lists| session.submit(&step, &lists));
                let result = submitted.as_ref().map_or_else(|refusal| refusal.code, |()| code::OK);
                // SAFETY: `results` has as many entries as there are jobs.
                unsafe { results.add(index).write(result) };
                if let Err(refusal) = submitted {
                    first.get_or_insert(refusal);
                }
            }
            if let Some(refusal) = first {
                tell(&refusal.text);
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_poll(engine: u64, ended: *mut Ended, capacity: u32, n: *mut u32) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(n, "n")? };
        if capacity > 0 {
            usable(ended, "ended")?;
        }
        with(engine, |session| {
            session.collect();
            let mut taken = 0;
            while taken < capacity
                && let Some(job) = session.take_ended()
            {
                // SAFETY: `capacity` entries.
                unsafe { ended.add(taken as usize).write(job) };
                taken += 1;
            }
            out.put(taken);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_wait(engine: u64, ids: *const u64, n: u32, timeout_ms: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's list, as the header says.
        let ids = unsafe { list(ids, n, "ids")? };
        let (began, limit) = (Instant::now(), Duration::from_millis(timeout_ms.into()));
        // The engine's own wait would keep others out, and has no end of its own.
        while with(engine, |session| Ok(session.any_running(ids)))? {
            let waited = began.elapsed();
            if waited >= limit {
                return Err(Refusal::new(code::TIMEOUT, format!("not all of {n} jobs have ended in {timeout_ms} ms")));
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_export_memory(
    engine: u64,
    address: u64,
    handle: *mut [u8; 64],
    offset: *mut u64,
    allocation_bytes: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's pointers, as the header says.
        let (handle, offset, bytes) = unsafe {
            (Out::new(handle, "handle")?, Out::new(offset, "offset")?, Out::new(allocation_bytes, "allocation_bytes")?)
        };
        let memory = with(engine, |session| session.export_memory(address))?;
        handle.put(memory.handle);
        offset.put(memory.offset);
        bytes.put(memory.allocation_bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_event_create(engine: u64, event: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(event, "event")? };
        out.put(with(engine, |session| session.create_event())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_event_open(engine: u64, handle: *const [u8; 64], event: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's pointers, as the header says.
        let (exported, out) = unsafe { (value(handle, "handle")?, Out::new(event, "event")?) };
        out.put(with(engine, |session| session.open_event(&exported))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_event_export(engine: u64, event: u64, handle: *mut [u8; 64]) -> i32 {
    call(|| {
        // SAFETY: the caller's pointer, as the header says.
        let out = unsafe { Out::new(handle, "handle")? };
        out.put(with(engine, |session| Ok(session.event(event)?.export()?))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_event_record(engine: u64, event: u64, stream: u64) -> i32 {
    // SAFETY: the stream is alive and of this device, as the header asks.
    call(|| with(engine, |session| Ok(unsafe { session.event(event)?.record(StreamHandle(stream)) }?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_copy_event_hold_back(engine: u64, event: u64, stream: u64) -> i32 {
    // SAFETY: the stream is alive and of this device, as the header asks.
    call(|| with(engine, |session| Ok(unsafe { session.event(event)?.hold_back(StreamHandle(stream)) }?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn terrace_copy_event_destroy(engine: u64, event: u64) -> i32 {
    call(|| with(engine, |session| session.destroy_event(event)))
}
