"""libterrace_copy.so: the copy engines in this process. The functions and structures are those of `terrace_copy.h`."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

NAME = "libterrace_copy.so"
ABI = 1

OK, FULL, TIMEOUT = 0, 6, 7
AUTO, HOST, CUDA = 0, 1, 2
STORE, LOAD = 0, 1
NO_POINT, STREAM = 0, 1


class LibraryError(Exception):
    """The library is not there, or refused."""


class Options(ctypes.Structure):
    """`terrace_copy_options`."""

    _fields_ = [
        ("size", c_uint32),
        ("kind", c_uint32),
        ("path", c_uint32),
        ("flags", c_uint32),
        ("device", c_char_p),
        ("nvrtc", c_char_p),
        ("cache_dir", c_char_p),
        ("piece_bytes", c_uint64),
        ("kernel_blocks", c_uint32),
        ("queue_entries", c_uint32),
        ("host_threads", c_uint32),
        ("register_threads", c_uint32),
    ]


class Pages(ctypes.Structure):
    """`terrace_copy_pages`."""

    _fields_ = [
        ("base", c_uint64),
        ("page_bytes", c_uint64),
        ("page_stride", c_uint64),
        ("num_blocks", c_uint32),
        ("reserved", c_uint32),
    ]


class Slots(ctypes.Structure):
    """`terrace_copy_slots`."""

    _fields_ = [("base", c_uint64), ("stride", c_uint64), ("slots", c_uint32), ("reserved", c_uint32)]


class Job(ctypes.Structure):
    """`terrace_copy_job`."""

    _fields_ = [
        ("id", c_uint64),
        ("block_ids", c_void_p),
        ("group_sizes", c_void_p),
        ("block_indices", c_void_p),
        ("slots", c_void_p),
        ("n_block_ids", c_uint32),
        ("n_groups", c_uint32),
        ("n_slots", c_uint32),
        ("reserved", c_uint32),
    ]


class Order(ctypes.Structure):
    """`terrace_copy_order`."""

    _fields_ = [("after_kind", c_uint32), ("before_kind", c_uint32), ("after", c_uint64), ("before", c_uint64)]


class Ended(ctypes.Structure):
    """`terrace_copy_ended`."""

    _fields_ = [("id", c_uint64), ("bytes", c_uint64), ("micros", c_uint64), ("code", c_int32), ("reserved", c_uint32)]


class JobLists(NamedTuple):
    """A job's numbers, little-endian 32 bits each; see `protocol.CopyJob`."""

    id: int
    blocks: bytes
    sizes: bytes
    firsts: bytes
    slots: bytes


class Library:
    """The loaded library. Raises `LibraryError` where a call is refused, in the library's words."""

    def __init__(self, path: str = "") -> None:
        try:
            self._library = ctypes.CDLL(path or NAME)
            version = self._library.terrace_copy_abi_version
        except (OSError, AttributeError) as error:
            raise LibraryError(
                f"{path or NAME} cannot be loaded: {error}. Build it with `cargo build --release -p terrace-copy` and say "
                "where it is ('terrace_copy_library', or LD_LIBRARY_PATH)."
            ) from error
        version.restype = c_uint32
        if version() != ABI:
            raise LibraryError(
                f"{path or NAME} has the binary interface {version()}, {ABI} is needed: use a library and a client of the "
                "same release"
            )
        self._library.terrace_copy_message.restype = c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Calls `terrace_copy_<name>`. Raises `LibraryError` unless it answers OK."""
        code = self.code(name, *arguments)
        if code != OK:
            raise LibraryError(f"terrace_copy_{name}: {self.message()} (code {code})")

    def code(self, name: str, *arguments: Any) -> int:
        """Calls `terrace_copy_<name>`; its answer."""
        return int(getattr(self._library, f"terrace_copy_{name}")(*arguments))

    def message(self) -> str:
        """Why the thread's last call was refused."""
        text: bytes = self._library.terrace_copy_message()
        return text.decode(errors="replace")


class Engine:
    """A copy engine. Any thread may call it; only `close`, `unregister` and `wait` wait for copies."""

    def __init__(self, library: Library, kind: int, device: str = "") -> None:
        """Raises `LibraryError`. Measures the ways to copy on a GPU: some hundred milliseconds."""
        self._library = library
        options = Options(size=ctypes.sizeof(Options), kind=kind, device=device.encode() or None)
        handle = c_uint64()
        library.call("open", byref(options), byref(handle))
        self._handle = handle
        self._ended = (Ended * 256)()

    def register(self, base: int, length: int) -> int:
        """Pins host memory behind the running service; its handle. Raises `LibraryError`."""
        region = c_uint64()
        self._library.call("register_region", self._handle, c_uint64(base), c_uint64(length), byref(region))
        return region.value

    def unregister(self, region: int) -> None:
        """Waits for all copies in flight; then the memory may go."""
        self._library.call("unregister_region", self._handle, c_uint64(region))

    def add_memory(self, base: int, length: int) -> None:
        """Device memory inside one allocation."""
        self._library.call("add_memory", self._handle, c_uint64(base), c_uint64(length))

    def add_layout(
        self, groups: Sequence[Sequence[Pages]], blocks_per_chunk: int, part_offset: int, part_bytes: int, null_block: int
    ) -> int:
        """Where the pages of all groups lie; its handle. Raises `LibraryError`."""
        pages = [page for group in groups for page in group]
        lengths = (c_uint32 * len(groups))(*map(len, groups))
        layout = c_uint64()
        self._library.call(
            "add_layout",
            self._handle,
            (Pages * len(pages))(*pages),
            c_uint32(len(pages)),
            lengths,
            c_uint32(len(groups)),
            c_uint32(blocks_per_chunk),
            c_uint64(part_offset),
            c_uint64(part_bytes),
            c_int64(null_block),
            byref(layout),
        )
        return layout.value

    def submit(self, layout: int, slots: Slots, direction: int, jobs: Sequence[JobLists], order: Order) -> list[int]:
        """Jobs of a step, in one call. A code for each. Raises `LibraryError` if the call itself is refused."""
        count = len(jobs)
        entries, results = (Job * count)(), (c_int32 * count)()
        for entry, job in zip(entries, jobs):
            entry.id = job.id
            for name, numbers in (
                ("block_ids", job.blocks),
                ("group_sizes", job.sizes),
                ("block_indices", job.firsts),
                ("slots", job.slots),
            ):
                # The lists live as long as `jobs`, which is longer than the call.
                setattr(entry, name, ctypes.cast(c_char_p(numbers), c_void_p))
            entry.n_block_ids, entry.n_groups = len(job.blocks) // 4, len(job.sizes) // 4
            entry.n_slots = len(job.slots) // 4
        self._library.call(
            "submit",
            self._handle,
            c_uint64(layout),
            byref(slots),
            c_uint32(direction),
            entries,
            c_uint32(count),
            byref(order),
            results,
        )
        return list(results)

    def message(self) -> str:
        """Why the first job of this thread's last `submit` was refused."""
        return self._library.message()

    def poll(self) -> list[tuple[int, bool, int, int]]:
        """Jobs that have ended: name, whether all bytes are there, bytes, microseconds. Does not wait."""
        ended: list[tuple[int, bool, int, int]] = []
        count = c_uint32(len(self._ended))
        while count.value == len(self._ended):
            self._library.call(
                "poll", self._handle, self._ended, c_uint32(len(self._ended)), byref(count)
            )
            ended += [(job.id, job.code == OK, job.bytes, job.micros) for job in self._ended[: count.value]]
        return ended

    def wait(self, jobs: Sequence[int], timeout_ms: int) -> bool:
        """Waits until none of them is in flight. False: not within the time."""
        names = (c_uint64 * len(jobs))(*jobs)
        code = self._library.code("wait", self._handle, names, c_uint32(len(jobs)), c_uint32(timeout_ms))
        if code not in (OK, TIMEOUT):
            raise LibraryError(f"terrace_copy_wait: {self.message()} (code {code})")
        return code == OK

    def stats(self) -> dict[str, Any]:
        """What the engine is and has done."""
        length = c_size_t()
        buffer = ctypes.create_string_buffer(1 << 14)
        self._library.call("stats", self._handle, buffer, c_size_t(len(buffer)), byref(length))
        stats: dict[str, Any] = json.loads(buffer.value)
        return stats

    def close(self) -> None:
        """Waits for the copies in flight, and gives everything back."""
        self._library.call("close", self._handle)
