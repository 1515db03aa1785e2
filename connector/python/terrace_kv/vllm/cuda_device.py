"""This process's GPU, as far as it is shared with the daemon: handles of memory from the CUDA driver, events from torch.

The driver's library is the one that torch has loaded, and its calls work on torch's context: the calling thread's current
one.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..protocol import DEVICE_UUID_BYTES, IPC_HANDLE_BYTES

LIBRARY = "libcuda.so.1"


class DeviceError(Exception):
    """A GPU, or memory on it, that cannot be shared."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * IPC_HANDLE_BYTES)]


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * DEVICE_UUID_BYTES)]


class Driver:
    """The four calls of the driver API that are needed. Sources: `cuda.h`, CUDA 12."""

    def __init__(self, path: str = LIBRARY) -> None:
        """Raises `DeviceError` if the library is not there."""
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(f"{path}, the CUDA driver's library, cannot be loaded: {error}") from error

    def uuid(self) -> bytes:
        """UUID of the current context's device; of a MIG instance its own."""
        device, uuid = ctypes.c_int(), _Uuid()
        self._call("cuCtxGetDevice", ctypes.byref(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
        return bytes(uuid)

    def allocation(self, address: int) -> tuple[int, int]:
        """First address and length of the allocation that holds the address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def memory_handle(self, base: int) -> bytes:
        """The handle by which another process opens the allocation."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError(f"{name} failed with CUresult {code}")


class CudaDevice:
    """See `device_copier.Device`. For the thread that runs the model."""

    def __init__(self, device: Any) -> None:
        """`device`: torch's. Raises `DeviceError` if the driver is not there."""
        self._device = device
        self._driver = Driver()
        self._own: dict[bytes, Any] = {}
        self._opened: dict[bytes, Any] = {}

    def uuid(self) -> bytes:
        """16 bytes."""
        return self._driver.uuid()

    def export(self, address: int) -> tuple[bytes, int, int]:
        """See `Device`."""
        try:
            base, size = self._driver.allocation(address)
            return self._driver.memory_handle(base), address - base, size
        except DeviceError as error:
            raise DeviceError(
                f"the KV cache at {address:#x} cannot be handed to another process: {error}. Memory of a virtual-memory "
                "allocator never can: PyTorch's expandable_segments, vLLM's sleep mode."
            ) from error

    def make_event(self) -> bytes:
        """See `Device`."""
        import torch

        event = torch.cuda.Event(enable_timing=False, interprocess=True)
        # Torch makes the event when it is first recorded.
        event.record(torch.cuda.current_stream(self._device))
        handle = bytes(event.ipc_handle())
        self._own[handle] = event
        return handle

    def record(self, event: bytes) -> None:
        """See `Device`."""
        import torch

        self._own[event].record(torch.cuda.current_stream(self._device))

    def hold_back(self, event: bytes) -> None:
        """See `Device`."""
        import torch

        opened = self._opened.get(event)
        if opened is None:
            # One at a time: a daemon that attached anew has new events.
            opened = torch.cuda.Event.from_ipc_handle(self._device, event)
            self._opened = {event: opened}
        torch.cuda.current_stream(self._device).wait_event(opened)
