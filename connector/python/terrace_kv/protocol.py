"""The wire: a header of 32 bytes and a MessagePack body. The page is `docs/protocol.md` of the project.

Each message is an array of its fields in the order in which they stand here. Lists of keys and of numbers travel as one
string of bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from .errors import ProtocolError

HEADER_BYTES = 32
MAGIC = b"TRRC"
VERSION = 1
#: Longest body of a Hello and of its reply.
MAX_HELLO_BYTES = 64 << 10
MAX_DESCRIPTORS = 2

#: Flags of a frame.
REQUEST, REPLY, ERROR, ONE_WAY = 0, 1, 3, 4
_FLAGS = frozenset((REQUEST, REPLY, ERROR, ONE_WAY))

#: Optional feature: the daemon copies between a worker's GPU memory and the slots.
DEVICE_COPIES = "device-copies"
#: Optional feature: the pool's block table comes along, and what is found in it can be leased. Not used here.
SHARED_TABLE = "shared-table"
#: Length of the driver's handles of memory and of events, and of a device's UUID.
IPC_HANDLE_BYTES, DEVICE_UUID_BYTES = 64, 16

#: Bits of `EndStep.want`.
WANT_EVENTS, WANT_STATS = 1, 2


class Kind(IntEnum):
    """What a body is."""

    HELLO = 1
    LOOKUP = 2
    PREPARE_STORE = 3
    END_STEP = 4
    COMPLETE = 5
    PING = 6
    RESET = 7
    PIN = 8
    UNPIN = 9
    STORE_ROWS = 10
    LOAD_ROWS = 11
    STATS = 12
    BYE = 13
    GOODBYE = 14
    ATTACH = 15
    COPY = 16
    COPIED = 17
    LEASE = 18


_KINDS = {int(kind): kind for kind in Kind}


class ErrorCode(IntEnum):
    """Why a request was refused."""

    MALFORMED = 1
    VERSION = 2
    NOT_ADMITTED = 3
    ROLE = 4
    LIMIT = 5
    UNKNOWN = 6
    RETRY = 7
    CLOSING = 8
    INVALID = 9
    INTERNAL = 10


class Scan(IntEnum):
    """How far a query goes."""

    #: Up to the first miss: full attention.
    PREFIX = 0
    #: Each key: sliding windows, and whoever wants to know.
    EACH = 1


class Answer(IntEnum):
    """What is known of a key: the low three bits of its answer byte. The high five say where from."""

    #: Not to be had.
    MISS = 0
    #: Readable in its slot. Origin 0: an engine stored it; `t + 1`: tier `t` brought it.
    HIT = 1
    #: On its way to the primary.
    PENDING = 2
    #: In the tier with the index in the high bits: brought if the request says in its `EndStep` that it waits.
    FOUND = 3
    #: Not known yet: ask again in a later step.
    RETRY = 4


#: Mask and shift of an answer byte.
ANSWER_MASK, ORIGIN_SHIFT = 7, 3
#: All bytes that are valid answers.
ANSWER_BYTES = bytes([0, 2, 4, *(1 | origin << 3 for origin in range(32)), *(3 | tier << 3 for tier in range(32))])
#: All answer bytes that are no hit.
NO_HIT_BYTES = bytes(byte for byte in ANSWER_BYTES if byte & ANSWER_MASK != Answer.HIT)


class Header(NamedTuple):
    """The header of a frame."""

    kind: Kind
    flags: int
    body_bytes: int
    sequence: int
    descriptors: int


_HEADER = struct.Struct("<4sHHIIQH6s")
_RESERVED = bytes(6)


def pack_header(buffer: bytearray, kind: int, flags: int, body_bytes: int, sequence: int, descriptors: int) -> None:
    """Writes a header over the first 32 bytes of `buffer`."""
    _HEADER.pack_into(buffer, 0, MAGIC, VERSION, kind, flags, body_bytes, sequence, descriptors, _RESERVED)


def unpack_header(buffer: bytes | bytearray | memoryview, offset: int, most_body_bytes: int) -> Header:
    """The header at `offset`. Raises `ProtocolError` for all that version 1 does not allow."""
    magic, version, kind, flags, body_bytes, sequence, descriptors, reserved = _HEADER.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise ProtocolError("this is no frame: it does not start with TRRC")
    if version != VERSION:
        raise ProtocolError(
            f"protocol version {version}, this side speaks {VERSION}: use a client and a server of the same release"
        )
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"message kind {kind} is not known here")
    if flags not in _FLAGS:
        raise ProtocolError(f"flags {flags:#x} are not valid")
    if body_bytes > most_body_bytes:
        raise ProtocolError(f"a body of {body_bytes} bytes, at most {most_body_bytes} are taken")
    if descriptors > MAX_DESCRIPTORS:
        raise ProtocolError(f"{descriptors} descriptors with one frame, at most {MAX_DESCRIPTORS} are taken")
    if reserved != _RESERVED:
        raise ProtocolError("reserved bytes of the header are not 0")
    return Header(known, flags, body_bytes, sequence, descriptors)


U8 = Annotated[int, Meta(ge=0, le=0xFF)]
U16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
#: MessagePack itself ends at 64 bits.
U64 = Annotated[int, Meta(ge=0)]


class Message(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all messages: an array of the fields, no more, and no fewer in what a daemon sends: only what a client
    sends has defaults.
    """


class WireLimits(Message):
    """What the server allows a session."""

    #: Longest body, in bytes, either way.
    message_bytes: U32
    #: Keys in one message.
    keys_per_message: U32
    #: Requests open at once.
    requests: U32
    #: Jobs and leases that have not ended.
    jobs: U32
    #: Slots that the session may have leased, loading or being stored at once.
    slots: U32


class Namespace(Struct, array_like=True, forbid_unknown_fields=True, gc=False, frozen=True):
    """What makes bytes interchangeable; the server takes the digest."""

    #: Model name or path.
    model: str
    #: Model revision or checkpoint digest.
    revision: str = ""
    #: Element type of the KV cache.
    dtype: str = ""
    #: Memory layout of one block.
    kv_layout: str = ""
    #: Quantisation and its scales.
    quantisation: str = ""
    #: RoPE and every other setting that changes KV values.
    rope: str = ""
    #: Parallel layout, or `canonical`.
    parallel: str = ""
    #: Engine name and the version of its KV format.
    engine: str = ""
    #: Tenant.
    tenant: str = ""


class Geometry(Struct, array_like=True, forbid_unknown_fields=True, gc=False, frozen=True):
    """Shape of a block."""

    #: Payload bytes of a block.
    block_bytes: U32
    #: Tokens of a GPU block.
    tokens_per_block: U32
    #: GPU blocks in an offloaded block.
    blocks_per_chunk: U32
    #: KV-cache groups.
    groups: U32
    #: Length of a block hash; a key is 4 bytes longer.
    hash_bytes: U8

    @property
    def key_bytes(self) -> int:
        """Length of a key."""
        return self.hash_bytes + 4


class ForeignRegion(Struct, array_like=True, forbid_unknown_fields=True, gc=False, frozen=True):
    """A region that belongs to the engine: a file on tmpfs, row `i` at `offset_bytes + i * row_stride`."""

    rows: U32
    #: Bytes from one row to the next, at least `block_bytes`.
    row_stride: U32
    #: Where row 0 starts.
    offset_bytes: U64


class Hello(Message):
    """Opens a session."""

    version_min: U16
    version_max: U16
    #: Optional features that the client can use: `DEVICE_COPIES`, `SHARED_TABLE`.
    features: list[str]
    #: "scheduler", "worker" or "tier".
    role: str
    #: The same in all sessions of an engine, and in no other engine's.
    engine: str
    #: Worker: its rank. Others: 0.
    rank: U32
    #: Scheduler: how many workers must report a store. 0: the scheduler reports by itself.
    store_workers: U32
    #: Scheduler: how many workers must report a load. 0: the scheduler reports by itself.
    load_workers: U32
    namespace: Namespace
    geometry: Geometry
    #: Tier: the region of the engine, whose descriptor comes with the frame.
    foreign: ForeignRegion | None
    #: Name and version of the client, for logs.
    client: str


class TierInfo(Struct, array_like=True, forbid_unknown_fields=True, gc=False, frozen=True):
    """A secondary tier."""

    name: str
    #: 0 CPU, 1 STORAGE.
    medium: U8
    #: 0 LOCAL, 1 REMOTE.
    locality: U8


class HelloReply(Message):
    """The session is open. The descriptor of the pool's region comes with it, except for the role "tier"."""

    version: U16
    features: list[str]
    #: Number of the session, for logs.
    session: U64
    #: Names the region: another number is another mapping. Never 0.
    region: U64
    #: Digest of namespace and geometry.
    namespace: bytes
    #: Slots of the pool.
    slots: U32
    #: Bytes from one slot to the next.
    slot_stride: U32
    #: Length of the region.
    region_bytes: U64
    #: In the order in which they are asked: the bits of a tier filter.
    tiers: tuple[TierInfo, ...]
    limits: WireLimits


class Query(Message):
    """Keys of one group."""

    #: A `Scan`.
    scan: U8
    #: One after the other, in the order of their positions.
    keys: bytes


class Lookup(Message):
    """Where is what a request wants? One message for the whole request."""

    request: U64
    #: Tiers that may be asked: bit `i` is tier `i`. Taken when the request is opened.
    tiers: U32
    #: Whether hits are to be leased.
    lease: bool
    #: Group by group.
    queries: list[Query]


class LookupReply(Message):
    """Answers to a `Lookup`."""

    #: Names the lease until the next `EndStep`: the sequence of the lookup. 0: nothing is leased.
    lease: U64
    #: One byte for each key. A prefix query that ended early has fewer: the last is a miss then, and so is the rest.
    answers: bytes
    #: For each hit, in order, its slot as little-endian 32 bits.
    slots: bytes


class Lease(Message):
    """Blocks that the client has found in the shared block table, to be loaded."""

    request: U64
    #: As in `Lookup`.
    tiers: U32
    #: The last change when the table was read.
    seen: U64
    #: Where they were found, as little-endian 32 bits.
    slots: bytes


class LeaseReply(Message):
    """Answers a `Lease`."""

    #: Names the lease, as in `LookupReply`. 0: something has changed; ask with a `Lookup`.
    lease: U64


class PrepareStore(Message):
    """Reserves slots for what is to be stored."""

    request: U64
    #: Not 0, not in use in this session.
    job: U64
    #: Whether the leading part that fits is enough.
    allow_partial: bool
    #: In prefix order.
    keys: bytes


class PrepareStoreReply(Message):
    """What is to be stored where."""

    #: False: no room, and nothing was done.
    room: bool
    #: Indices of the keys to store, ascending, little-endian 32 bits each.
    store: bytes
    #: One slot for each of them, likewise.
    slots: bytes


class LeaseEnd(Message):
    """What becomes of a lease."""

    lease: U64
    #: Name of the load that starts from it; 0 for none.
    job: U64 = 0
    #: Keys that are loaded: indices into the lookup's keys, all queries together, little-endian 32 bits each. All were
    #: hits.
    load: bytes = b""
    #: Keys that the request waits for and wants brought: indices likewise, hits among them are held.
    wait: bytes = b""


class CompletedJob(Message):
    """A job that ended."""

    job: U64
    #: Whether all bytes were copied.
    ok: bool


class EndStep(Message):
    """The end of an engine step. Ends all leases of the session."""

    leases: list[LeaseEnd]
    #: Jobs that ended, where the scheduler copies by itself.
    completed: list[CompletedJob]
    #: Requests that ended.
    finished: list[U64]
    #: Keys that were used: first the most recent.
    touched: bytes
    #: `WANT_EVENTS`, `WANT_STATS`.
    want: U32


class Refusal(Message):
    """Keys of a lease that will not be brought."""

    lease: U64
    #: Indices, little-endian 32 bits each.
    keys: bytes


class RowsDone(Message):
    """Rows that were copied between the engine's region and the pool."""

    job: U64
    #: One byte for each key: 1 done, 0 not.
    ok: bytes
    #: From its arrival to its end.
    micros: U64


class EventBatch(Message):
    """Events of one kind in a row."""

    #: 0 stored, 1 removed, 2 all blocks of the primary cleared (no keys).
    what: U8
    #: 0 CPU, 1 STORAGE.
    medium: U8
    #: 0 LOCAL, 1 REMOTE.
    locality: U8
    keys: bytes


class JobOutcome(Message):
    """How a job ended."""

    job: U64
    #: Store: the blocks are readable. Load: all workers have the bytes.
    ok: bool


class EndStepReply(Message):
    """What happened since the last `EndStep`."""

    #: What will not be brought although it was waited for: no room.
    refused: list[Refusal]
    #: Workers of the engine that are attached. Below what was announced everything is a miss and nothing is stored.
    workers: U32
    #: `StoreRows` and `LoadRows` that ended.
    rows: list[RowsDone]
    #: If wanted: what became readable or unreadable where.
    events: list[EventBatch]
    #: Events that this session lost since it opened.
    events_lost: U64
    #: If wanted: name and value.
    stats: list[tuple[str, float]]
    #: Jobs that ended.
    jobs: list[JobOutcome]


class Complete(Message):
    """From those who copy: jobs of their engine that ended for them."""

    jobs: list[CompletedJob]


class Pin(Message):
    """Keeps blocks in the primary for a while."""

    request: U64
    ttl_ms: U32
    keys: bytes


class PinReply(Message):
    """How many blocks are pinned."""

    pinned: U32


class Unpin(Message):
    """Ends pins."""

    request: U64
    keys: bytes


class StoreRows(Message):
    """Role "tier": copy rows of the engine's region into the pool, and on to all tiers."""

    request: U64
    job: U64
    keys: bytes
    #: One row for each key, little-endian 32 bits each.
    rows: bytes


class LoadRows(Message):
    """Role "tier": bring blocks into rows of the engine's region."""

    request: U64
    job: U64
    keys: bytes
    #: One row for each key, little-endian 32 bits each.
    rows: bytes


class StatsReply(Message):
    """Statistics of the pool."""

    values: list[tuple[str, float]]


class Goodbye(Message):
    """The server is about to close this connection."""

    reason: str


class DeviceMemory(Message):
    """An allocation on the worker's GPU."""

    #: The driver's handle (CUDA IPC), 64 bytes.
    handle: bytes
    #: Of the exported address in its allocation.
    offset: U64
    allocation_bytes: U64


class DevicePages(Message):
    """The pages of one tensor."""

    #: Index into `Attach.memories`.
    memory: U32
    #: Of block 0's page, from the exported address.
    offset: U64
    num_blocks: U32
    page_bytes: U32
    #: From the start of a page to the start of the next block's.
    page_stride: U64


class Attach(Message):
    """From a worker: copy between this memory and the slots. Once in a session."""

    #: UUID of the GPU, 16 bytes.
    device: bytes
    memories: list[DeviceMemory]
    #: Per KV-cache group its tensors, in the order in which their pages lie in the worker's part of a slot.
    groups: list[list[DevicePages]]
    #: The worker's part of a slot.
    part_offset: U32
    part_bytes: U32
    #: A block that counts but is not copied.
    null_block: U32 | None
    #: Handles of events that the worker records before each `Copy`: behind what writes the pages that are stored, and
    #: behind what uses the pages that are loaded.
    store_ready: bytes
    load_ready: bytes


class AttachReply(Message):
    """Copies can be asked for."""

    #: Handles of events that the daemon records behind the copies of each `Copy`.
    stored: bytes
    loaded: bytes


class CopyJob(Message):
    """The pages of a job. Lists are little-endian 32 bits each."""

    job: U64
    #: GPU blocks, group after group.
    blocks: bytes
    #: Blocks of each group.
    sizes: bytes
    #: Of each group the place of its first block in the request.
    firsts: bytes
    #: Slots, group after group, one per chunk.
    slots: bytes


class Copy(Message):
    """All copies of one step in one direction."""

    #: True: pages to slots.
    store: bool
    jobs: list[CopyJob]


class CopiedJob(Message):
    """Nothing is copied for this job any more."""

    job: U64
    #: Whether all its bytes were copied. If not nothing is known of slots or pages.
    ok: bool
    bytes: U64
    micros: U64


class Copied(Message):
    """Copies that ended."""

    jobs: list[CopiedJob]


class ErrorReply(Message):
    """The body of a frame with the ERROR flag."""

    #: An `ErrorCode`; one that is not known here means `INTERNAL`.
    code: U16
    #: For people.
    message: str


#: Types of the bodies; None is an empty body. A kind that is missing has no such frame.
REQUESTS: dict[Kind, type[Message] | None] = {
    Kind.HELLO: Hello,
    Kind.LOOKUP: Lookup,
    Kind.PREPARE_STORE: PrepareStore,
    Kind.END_STEP: EndStep,
    Kind.COMPLETE: Complete,
    Kind.PING: None,
    Kind.RESET: None,
    Kind.PIN: Pin,
    Kind.UNPIN: Unpin,
    Kind.STORE_ROWS: StoreRows,
    Kind.LOAD_ROWS: LoadRows,
    Kind.STATS: None,
    Kind.BYE: None,
    Kind.GOODBYE: Goodbye,
    Kind.ATTACH: Attach,
    Kind.COPY: Copy,
    Kind.COPIED: Copied,
    Kind.LEASE: Lease,
}
REPLIES: dict[Kind, type[Message] | None] = {
    Kind.HELLO: HelloReply,
    Kind.LOOKUP: LookupReply,
    Kind.PREPARE_STORE: PrepareStoreReply,
    Kind.END_STEP: EndStepReply,
    Kind.PING: None,
    Kind.RESET: None,
    Kind.PIN: PinReply,
    Kind.UNPIN: None,
    Kind.STATS: StatsReply,
    Kind.ATTACH: AttachReply,
    Kind.LEASE: LeaseReply,
}

_encoder = msgspec.msgpack.Encoder()
_M = TypeVar("_M", bound=Message)
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Message]] = {}


def encode_frame(
    buffer: bytearray, kind: Kind, flags: int, sequence: int, message: Message | None, descriptors: int = 0
) -> None:
    """Makes `buffer` the whole frame. Its memory is used again."""
    if message is None:
        buffer[:] = bytes(HEADER_BYTES)
    else:
        # The encoder cuts the buffer behind the body, and refuses an offset beyond its end.
        if len(buffer) < HEADER_BYTES:
            buffer[:] = bytes(HEADER_BYTES)
        _encoder.encode_into(message, buffer, HEADER_BYTES)
    pack_header(buffer, kind, flags, len(buffer) - HEADER_BYTES, sequence, descriptors)


def decode(kind: type[_M], body: bytes | bytearray | memoryview) -> _M:
    """The message in `body`, all of it. Raises `ProtocolError`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the body is not a valid {kind.__name__}: {error}") from error
    assert isinstance(message, kind)
    return message


#: A list of numbers as it comes off the wire: indexable, iterable, and a buffer of 32-bit integers for numpy and torch.
Numbers = memoryview


def numbers(wire: bytes) -> memoryview:
    """The little-endian 32-bit numbers in `wire`, as a view of unsigned integers. Raises `ProtocolError`."""
    if len(wire) % 4:
        raise ProtocolError(f"{len(wire)} bytes are no whole numbers of 4")
    if sys.byteorder == "little":
        return memoryview(wire).cast("I")
    values = array("I", wire)
    values.byteswap()
    return memoryview(values)


def numbers_to_bytes(values: bytes | memoryview | Sequence[int]) -> bytes:
    """Numbers as little-endian 32 bits each. Bytes, and views of bytes, are taken to be in that form already."""
    if isinstance(values, bytes):
        return values
    if isinstance(values, memoryview) and values.itemsize == 1:
        return values.tobytes()
    packed = array("I", values)
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()
