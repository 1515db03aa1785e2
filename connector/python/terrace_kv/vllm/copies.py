"""Who copies: this process or the daemon."""

from __future__ import annotations

from vllm.logger import init_logger

from ..options import SessionOptions
from ..worker_session import WorkerSession
from .copier import Copier, Ended
from .cuda_device import CudaDevice, DeviceError
from .device_copier import DeviceCopier
from .host_copier import HostCopier
from .in_process_copier import LibraryCopier
from .layout import LayoutError, WorkerLayout
from .settings import Settings
from .worker import TerraceWorker

logger = init_logger(__name__)


def open_worker(settings: Settings, options: SessionOptions, layout: WorkerLayout) -> TerraceWorker:
    """The worker for KV caches of this layout, as the settings say. Does not wait for the daemon. Raises `LayoutError`
    for caches that nobody can copy so."""
    device, way = layout.device, settings.copy
    if device.type not in ("cpu", "cuda"):
        raise LayoutError(f"the KV cache lies on {device}: copies are made in host memory and on NVIDIA GPUs")
    if way == "auto":
        way = "host" if device.type == "cpu" else "daemon"
    wrong = {"host": "cuda", "daemon": "cpu"}.get(way)
    if device.type == wrong:
        raise LayoutError(
            f"the KV cache lies on {device} and 'terrace_copy' is {way!r}: leave it out of kv_connector_extra_config, or "
            "write 'auto'"
        )

    def host(ended: Ended) -> Copier:
        return HostCopier(WorkerSession(options), layout, ended)

    def daemon(ended: Ended) -> Copier:
        copier = DeviceCopier(CudaDevice(device), layout, ended, options.call_budget_s)
        copier.use(WorkerSession(options, copier))
        return copier

    def library(ended: Ended) -> Copier:
        return LibraryCopier(settings.copy_library, WorkerSession(options), layout, ended)

    if way == "host":
        return TerraceWorker(host)
    if way == "daemon":
        try:
            return TerraceWorker(daemon)
        except DeviceError as error:
            if settings.copy == "daemon":
                raise LayoutError(f"'terrace_copy' is 'daemon': {error}") from error
            logger.warning("terrace: this process copies, by libterrace_copy.so: %s", error)
    return TerraceWorker(library)
