"""A pool's region, mapped."""

from __future__ import annotations

import fcntl
import mmap
import os

from .errors import RegionError
from .protocol import HelloReply

# Linux, `fcntl.h`; the module has the names from Python 3.9 on where the C library knows them.
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2


class Mapping:
    """The region of a pool in this process's memory, shared with the daemon and with all sessions of the pool.

    Only the slots of a store that is being prepared may be written, only those of a lease or a load read; who does
    otherwise reads or writes another's block. It is unmapped when nobody refers to it or to a view of it any more.
    """

    def __init__(self, descriptor: int, reply: HelloReply) -> None:
        """Maps what the descriptor names; the descriptor stays the caller's. Raises `RegionError`."""
        needed = reply.slots * reply.slot_stride
        if reply.region == 0 or reply.region_bytes < needed or needed == 0:
            raise RegionError(
                f"region {reply.region} of {reply.region_bytes} bytes cannot hold "
                f"{reply.slots} slots of {reply.slot_stride}"
            )
        try:
            status = os.fstat(descriptor)
            seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
        except OSError as error:
            raise RegionError(f"the descriptor of region {reply.region} is no memfd: {error}") from error
        if status.st_size < reply.region_bytes:
            raise RegionError(f"region {reply.region} has {status.st_size} bytes, {reply.region_bytes} were told")
        if not seals & _F_SEAL_SHRINK:
            # A file that shrinks under a mapping kills whoever touches it.
            raise RegionError(f"region {reply.region} is not sealed against shrinking")
        try:
            memory = mmap.mmap(descriptor, reply.region_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError, OverflowError) as error:
            raise RegionError(f"region {reply.region} cannot be mapped: {error}") from error
        #: A writable buffer of the whole region.
        self.memory = memory
        #: Its number.
        self.region = reply.region
        self.slots = reply.slots
        #: Bytes from one slot to the next.
        self.slot_stride = reply.slot_stride
        self.bytes = reply.region_bytes
        #: What file it is: numbers of regions are the daemon's.
        self.file = (status.st_dev, status.st_ino)

    def slot(self, index: int, length: int | None = None) -> memoryview:
        """The bytes of a slot, writable. Raises `IndexError` for one that does not exist."""
        if not 0 <= index < self.slots:
            raise IndexError(f"slot {index} of a region of {self.slots}")
        begin = index * self.slot_stride
        size = self.slot_stride if length is None else min(length, self.slot_stride)
        return memoryview(self.memory)[begin : begin + size]
