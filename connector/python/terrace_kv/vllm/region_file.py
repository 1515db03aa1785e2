"""The file behind vLLM's region, found from its memory.

vLLM gives a secondary tier a view of its region, not the file; and the file may have lost its name by then. The
kernel knows: `/proc/self/maps` says which file lies at the view's address, and vLLM keeps a descriptor of it open.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

import numpy as np

__all__ = ["RegionFile", "find_region_file"]


class RegionFile(NamedTuple):
    """Rows in a file."""

    #: A descriptor of the caller's own, for reading and writing.
    descriptor: int
    rows: int
    #: Bytes from one row to the next.
    row_stride: int
    #: Where row 0 starts in the file.
    offset_bytes: int


class _Mapped(NamedTuple):
    device: int
    inode: int
    offset_bytes: int
    path: str


def find_region_file(view: memoryview) -> RegionFile:
    """The file whose shared mapping `view` shows, one row for each element of its first dimension.

    Raises `ValueError` if there is none.
    """
    if view.strides is None or view.ndim < 1 or not view.c_contiguous or view.shape is None:
        raise ValueError("the region of vLLM is no contiguous memory: this version of vLLM is not supported")
    rows, row_stride = view.shape[0], view.strides[0]
    mapped = _mapped_at(np.asarray(view).ctypes.data)
    descriptor = _open(mapped)
    end = mapped.offset_bytes + rows * row_stride
    if os.fstat(descriptor).st_size < end:
        os.close(descriptor)
        raise ValueError(f"the region of vLLM ends at byte {end}, its file {mapped.path} before that")
    return RegionFile(descriptor, rows, row_stride, mapped.offset_bytes)


def _mapped_at(address: int) -> _Mapped:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, access, offset, device, inode, *path = line.split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split("-"))
            if not start <= address < end:
                continue
            if inode == "0" or not access.endswith("s"):
                break
            major, minor = (int(number, 16) for number in device.split(":"))
            name = path[0].rstrip("\n") if path else ""
            return _Mapped(os.makedev(major, minor), int(inode), int(offset, 16) + address - start, name)
    raise ValueError(
        "the region of vLLM is no shared mapping of a file, so the daemon cannot copy to it: "
        "use TieringOffloadingSpec, which keeps it in /dev/shm"
    )


def _open(mapped: _Mapped) -> int:
    """A descriptor of the file for reading and writing: a copy of one that is open, or by name."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            if writable and _is(mapped, os.fstat(descriptor)):
                return os.dup(descriptor)
        except OSError:
            continue
    try:
        descriptor = os.open(mapped.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"the file of vLLM's region, {mapped.path}, cannot be opened: {error}") from error
    if not _is(mapped, os.fstat(descriptor)):
        os.close(descriptor)
        raise ValueError(f"{mapped.path} is no longer the file of vLLM's region")
    return descriptor


def _is(mapped: _Mapped, status: os.stat_result) -> bool:
    return (status.st_dev, status.st_ino) == (mapped.device, mapped.inode)
