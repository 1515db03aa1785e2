/*
 * terrace_copy.h: Terrace's copy engines as a C library (libterrace_copy.so).
 *
 * They move KV blocks between an engine's memory and the slots of Terrace's primary region: between a GPU and host memory ("cuda": the
 * NVIDIA driver is loaded at run time, CUDA itself is not needed), or from memory to memory ("host", for engines without a GPU). A
 * step of one direction is one call.
 *
 *     open -> register_region, add_memory, add_layout -> { submit, poll, wait }... -> close
 *
 * Words. A block is a GPU block of the engine: in each tensor of its group it has one page. A chunk is `blocks_per_chunk` blocks in a
 * row, which one slot holds. A worker has a part of each slot: `part_bytes` bytes from `part_offset` on. In its part a group's tensors
 * follow each other, and inside each tensor the pages of the chunk's blocks:
 *
 *     part: | tensor 0: page of place 0 | place 1 | .. place n-1 | tensor 1: place 0 | .. |        n = blocks_per_chunk
 *
 * Answers. Each call answers a code, TERRACE_COPY_OK or why it was refused; a refused call has changed nothing.
 * `terrace_copy_message` has the reason in words. No call ends the process.
 *
 * Handles are numbers that are never used again, 0 is none: a handle that is not known, or was given back, is TERRACE_COPY_HANDLE.
 * They belong to this process and do not survive a fork. Addresses are numbers too, as PyTorch's `data_ptr()` gives them.
 *
 * Threads. Any thread may call anything at any time. Calls on one engine come one after the other; `terrace_copy_wait` lets
 * others in while it waits. The calls that wait for a device or for copies say so; no other does, but that submitting stores of host memory
 * that is not registered yet may wait for their end. No call needs a CUDA context to be current, and none leaves another one current.
 *
 * What the library cannot see, the caller promises: addresses stay valid until the copies that touch them have ended (poll
 * has reported them, or wait has answered OK) or the engine is closed; nobody writes what a copy reads, or touches what it writes, but in
 * the order that was given; streams are alive and of the engine's device.
 */
#ifndef TERRACE_COPY_H
#define TERRACE_COPY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. A library answers what it was built with: another number is another binary interface. */
#define TERRACE_COPY_ABI 1u
uint32_t terrace_copy_abi_version(void);

/* Codes. */
#define TERRACE_COPY_OK 0
#define TERRACE_COPY_INVALID 1         /* an argument that cannot be: the same call will be refused again */
#define TERRACE_COPY_HANDLE 2          /* a handle that is not known, or was given back */
#define TERRACE_COPY_UNSUPPORTED 3     /* this engine, device or driver has no such thing */
#define TERRACE_COPY_MISSING_LIBRARY 4 /* the NVIDIA driver cannot be loaded */
#define TERRACE_COPY_OUT_OF_MEMORY 5   /* on the device, or of pinned memory */
#define TERRACE_COPY_FULL 6            /* no room: poll and submit again; or a buffer that is too small */
#define TERRACE_COPY_TIMEOUT 7         /* wait: some of them have not ended */
#define TERRACE_COPY_DEVICE_LOST 8     /* the device failed for good: close the engine */
#define TERRACE_COPY_FAILED 9          /* the device, the driver or the system failed */
#define TERRACE_COPY_INTERNAL 10       /* a fault of this library (a caught panic): please report it */

/* Why the last call of this thread that did not answer OK was refused; after a submit that answered OK and refused jobs, why the first of
 * them was. Text that ends with zero, "" if there is none; valid until this thread's next call. */
const char *terrace_copy_message(void);

typedef uint64_t terrace_copy_engine;
typedef uint64_t terrace_copy_region;
typedef uint64_t terrace_copy_layout;
typedef uint64_t terrace_copy_event;

/* ---- engines ---- */

/* terrace_copy_options.kind */
#define TERRACE_COPY_AUTO 0u /* CUDA where its driver loads and has a device, else the host's */
#define TERRACE_COPY_HOST 1u
#define TERRACE_COPY_CUDA 2u

/* terrace_copy_options.path: how GPU memory is copied */
#define TERRACE_COPY_PATH_AUTO 0u /* what is fastest for a length, measured when the engine is opened */
#define TERRACE_COPY_PATH_BATCH 1u
#define TERRACE_COPY_PATH_RUNS 2u
#define TERRACE_COPY_PATH_RECTS 3u
#define TERRACE_COPY_PATH_KERNEL 4u

/* terrace_copy_options.flags */
#define TERRACE_COPY_NO_COPIES 1u /* only memory handles and events: for a worker whose copies a daemon makes */

/* Zero in every field but `size` means the default of that field. */
typedef struct terrace_copy_options {
  uint32_t size;             /* sizeof(terrace_copy_options) */
  uint32_t kind;             /* TERRACE_COPY_AUTO, _HOST or _CUDA */
  uint32_t path;             /* TERRACE_COPY_PATH_* */
  uint32_t flags;
  const char *device;        /* a number as this process counts devices, or "GPU-<uuid>"; NULL: 0 */
  const char *nvrtc;         /* path of libnvrtc; NULL: where the loader finds it, else the kernel that is built in */
  const char *cache_dir;     /* where compiled kernels are kept; NULL: in the user's cache; "": nowhere */
  uint64_t piece_bytes;      /* regions are registered in pieces of this size, a multiple of 2 MiB; 0: 256 MiB */
  uint32_t kernel_blocks;    /* thread blocks of the gather kernel, 1 to 1024; 0: 16 */
  uint32_t queue_entries;    /* jobs that were submitted and not polled, at most; 0: 1024 */
  uint32_t host_threads;     /* threads of a host engine, 1 to 64; 0: 2 */
  uint32_t register_threads; /* threads that register, 1 to 64; 0: 4 */
} terrace_copy_options;

/* Opens an engine. For CUDA with PATH_AUTO this measures the paths, which takes some hundred milliseconds and 64 MiB on the device. Waits. */
int32_t terrace_copy_open(const terrace_copy_options *options, terrace_copy_engine *engine);

/* Takes no more work, waits for the copies in flight, gives everything of the engine back: its regions, layouts and events too. A
 * terrace_copy_wait of another thread answers HANDLE. */
int32_t terrace_copy_close(terrace_copy_engine engine);

/* TERRACE_COPY_HOST or TERRACE_COPY_CUDA: what `kind` became. */
int32_t terrace_copy_kind(terrace_copy_engine engine, uint32_t *kind);

/* The device's UUID, the same in every process. Host: UNSUPPORTED. */
int32_t terrace_copy_device_uuid(terrace_copy_engine engine, uint8_t uuid[16]);

/* What the engine is and has done, as a JSON object of one line with a zero behind it. `*length` is its length without the zero, also
 * where it does not fit (FULL; then nothing is written). `buffer` may be NULL if `capacity` is 0. */
int32_t terrace_copy_stats(terrace_copy_engine engine, char *buffer, size_t capacity, size_t *length);

/* ---- memory ---- */

typedef struct terrace_copy_region_state {
  uint64_t bytes;      /* that are registered */
  uint32_t pieces;     /* of the region; 0: nothing has to be registered (host) */
  uint32_t registered;
  uint32_t refused;    /* by the driver: their copies are slow */
  uint32_t is_over;    /* 1: no piece waits for its turn */
} terrace_copy_region_state;

/* Tells of `len` bytes of host memory that hold slots, readable and writable until they are unregistered. CUDA: begins to pin them behind
 * and answers at once; what is not pinned yet is copied as well, slowly. Pages that were never touched are backed by it. Overlaps no other. */
int32_t terrace_copy_register_region(terrace_copy_engine engine, uint64_t base, uint64_t len, terrace_copy_region *region);
int32_t terrace_copy_region_progress(terrace_copy_engine engine, terrace_copy_region region, terrace_copy_region_state *state);
/* Waits for all copies in flight of the engine (they are still to be polled), then ends the registration. Afterwards the memory may go. */
int32_t terrace_copy_unregister_region(terrace_copy_engine engine, terrace_copy_region region);

/* Tells of device memory inside one allocation, such as a tensor. Once some is known, copies that leave what is known are refused, and
 * neighbours in it are merged. The same span again changes nothing. Host: accepted, and nothing more. */
int32_t terrace_copy_add_memory(terrace_copy_engine engine, uint64_t base, uint64_t len);
/* Forgets the span at `base`. Waits for all copies in flight of the engine first. */
int32_t terrace_copy_remove_memory(terrace_copy_engine engine, uint64_t base);

/* ---- layouts ---- */

/* Pages of one tensor: block b's are the `page_bytes` bytes at base + b * page_stride. */
typedef struct terrace_copy_pages {
  uint64_t base;
  uint64_t page_bytes;
  uint64_t page_stride; /* at least page_bytes */
  uint32_t num_blocks;
  uint32_t reserved;    /* 0 */
} terrace_copy_pages;

/* Where the pages of all groups lie: `pages` are those of group 0, then of group 1, ..; `group_lens` says how many each group has, at
 * least 1, and adds up to `n_pages`. `null_block` is a block that counts but is not copied (vLLM: 0), or -1. */
int32_t terrace_copy_add_layout(terrace_copy_engine engine, const terrace_copy_pages *pages, uint32_t n_pages,
                                const uint32_t *group_lens, uint32_t n_groups, uint32_t blocks_per_chunk,
                                uint64_t part_offset, uint64_t part_bytes, int64_t null_block,
                                terrace_copy_layout *layout);
/* Copies that were submitted with it go on. */
int32_t terrace_copy_remove_layout(terrace_copy_engine engine, terrace_copy_layout layout);

/* ---- copies ---- */

/* The slots of a region: slot i is the `stride` bytes at base + i * stride. All of them lie inside one registered region. */
typedef struct terrace_copy_slots {
  uint64_t base;
  uint64_t stride;
  uint32_t slots;
  uint32_t reserved; /* 0 */
} terrace_copy_slots;

/* Directions. */
#define TERRACE_COPY_STORE 0u /* blocks to slots */
#define TERRACE_COPY_LOAD 1u  /* slots to blocks */

/* A job: blocks, group after group, and the slots that they fill. All lists are read during the call. In one job no slot stands twice of a
 * store and no block twice in a group of a load. */
typedef struct terrace_copy_job {
  uint64_t id;                   /* the caller's name for it; of two in flight not the same */
  const uint32_t *block_ids;     /* group after group */
  const uint32_t *group_sizes;   /* blocks of each group */
  const uint32_t *block_indices; /* of each group the place of its first block in the request: modulo blocks_per_chunk the places
                                    that are skipped in its first slot */
  const uint32_t *slots;         /* group after group, one per chunk */
  uint32_t n_block_ids;
  uint32_t n_groups;             /* length of group_sizes and of block_indices: that of the layout */
  uint32_t n_slots;
  uint32_t reserved;             /* 0 */
} terrace_copy_job;

/* Points in the work of a device. */
#define TERRACE_COPY_NO_POINT 0u
#define TERRACE_COPY_STREAM 1u /* a CUstream of this process (torch.cuda.Stream.cuda_stream; 0 is the default stream) */
#define TERRACE_COPY_EVENT 2u  /* a terrace_copy_event of this engine */

/* After: no byte is touched before the device has come to this point (a stream: all that is in it now; an event: what is before its latest
 * record). Before: what comes behind this point waits for the copies (a stream: all that is put into it later; an event: it is
 * recorded behind them). A store waits for the stream that computes, and that waits for a load. The host waits for neither. */
typedef struct terrace_copy_order {
  uint32_t after_kind;  /* TERRACE_COPY_NO_POINT, _STREAM or _EVENT */
  uint32_t before_kind;
  uint64_t after;       /* a stream or an event */
  uint64_t before;
} terrace_copy_order;

/* Submits the jobs of a step that go one way. `results` gets a code for each: OK, or why that job was refused, which refuses no other one;
 * FULL: submit it again after a poll. Answers OK if the arguments of the call are good, whatever became of the jobs. `order` may be NULL:
 * none. Host: a point is UNSUPPORTED. Jobs without an order between them run in any order and at the same time. */
int32_t terrace_copy_submit(terrace_copy_engine engine, terrace_copy_layout layout, const terrace_copy_slots *slots,
                            uint32_t direction, const terrace_copy_job *jobs, uint32_t n_jobs,
                            const terrace_copy_order *order, int32_t *results);

/* A job that has ended: nothing is copied for it any more. */
typedef struct terrace_copy_ended {
  uint64_t id;
  uint64_t bytes;    /* of the job */
  uint64_t micros;   /* from its submission until its end was seen */
  int32_t code;      /* OK: all bytes are there. Else nothing is known of what it wrote */
  uint32_t reserved;
} terrace_copy_ended;

/* Takes jobs that have ended, each once, `capacity` at most; `*n` says how many. The rest comes with the next call. Does not wait. */
int32_t terrace_copy_poll(terrace_copy_engine engine, terrace_copy_ended *ended, uint32_t capacity, uint32_t *n);

/* Waits until none of these jobs is in flight, `timeout_ms` at most (else TIMEOUT). Poll still reports them. Jobs that are not known count
 * as ended. What they read may then be overwritten: this is the flush of a preemption. */
int32_t terrace_copy_wait(terrace_copy_engine engine, const uint64_t *ids, uint32_t n, uint32_t timeout_ms);

/* ---- for copies by another process (CUDA IPC); host: UNSUPPORTED ---- */

#define TERRACE_COPY_HANDLE_BYTES 64

/* The handle of the allocation around a device address. UNSUPPORTED: the allocator's memory cannot be exported (virtual-memory allocators
 * such as PyTorch's expandable segments): then this process copies by itself. */
int32_t terrace_copy_export_memory(terrace_copy_engine engine, uint64_t address, uint8_t handle[TERRACE_COPY_HANDLE_BYTES],
                                   uint64_t *offset, uint64_t *allocation_bytes);

/* An event that other processes can open, never recorded. */
int32_t terrace_copy_event_create(terrace_copy_engine engine, terrace_copy_event *event);
/* Another process's event. */
int32_t terrace_copy_event_open(terrace_copy_engine engine, const uint8_t handle[TERRACE_COPY_HANDLE_BYTES],
                                terrace_copy_event *event);
/* The handle of an event that this process created. */
int32_t terrace_copy_event_export(terrace_copy_engine engine, terrace_copy_event event,
                                  uint8_t handle[TERRACE_COPY_HANDLE_BYTES]);
/* Records it behind the work that is in a stream (a CUstream) now. */
int32_t terrace_copy_event_record(terrace_copy_engine engine, terrace_copy_event event, uint64_t stream);
/* Work that is put into the stream from now on waits for the event's latest record. The host does not. */
int32_t terrace_copy_event_hold_back(terrace_copy_engine engine, terrace_copy_event event, uint64_t stream);
/* What waits for it goes on waiting for its latest record. */
int32_t terrace_copy_event_destroy(terrace_copy_engine engine, terrace_copy_event event);

#ifdef __cplusplus
}
#endif
#endif
