"""Form (a): the offloading spec whose primary tier, and everything below it, is the daemon's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from ..options import Geometry, SessionOptions
from ..session import SchedulerSession
from .compat import engine_configs, flush_in_step, log_as_vllm, recompute_failed_loads, report_failed_loads
from .copies import open_worker
from .layout import LayoutError, WorkerLayout
from .manager import TerraceManager
from .namespace import vllm_namespace
from .requests import Group
from .settings import Settings
from .stats import metric_definitions
from .worker import TerraceWorker

logger = init_logger(__name__)

_MOST_BLOCK_BYTES = 0xFFFF_FFFF


class TerraceOffloadingSpec(OffloadingSpec):
    """Named by `"spec_name": "TerraceOffloadingSpec", "spec_module_path": "terrace_kv.vllm", "terrace_socket":
    PATH`."""

    @classmethod
    @override
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The metrics of `stats.py`."""
        return metric_definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        """Raises `ValueError` for a key that is not understood or a layout that is not supported. Does not need the
        daemon."""
        super().__init__(config)
        log_as_vllm()
        self.settings = Settings.parse(config.extra_config)
        if config.canonical_layout:
            raise ValueError(
                "kv_connector_extra_config: 'canonical_layout' is not supported by TerraceOffloadingSpec: remove "
                "it. Engines of different "
                "parallel layouts do not share blocks."
            )
        # One copy where all ranks hold equal bytes: then rank 0 alone stores.
        self.replicated_layout = config.replicated_layout
        vllm_config, self._kv_cache_config = engine_configs()
        self._vllm_config = vllm_config
        self.part_bytes = config.worker_kv_bytes_per_block * self.blocks_per_chunk
        parts = 1 if self.replicated_layout else config.parallel.world_size
        block_bytes = self.part_bytes * parts
        if not 0 < block_bytes <= _MOST_BLOCK_BYTES:
            raise ValueError(
                f"terrace: a chunk of {self.blocks_per_chunk} blocks has {block_bytes} bytes; it must have "
                f"between 1 and {_MOST_BLOCK_BYTES}. "
                "Lower 'blocks_per_chunk' (or 'block_size') in kv_connector_extra_config."
            )
        self.geometry = Geometry(
            block_bytes=block_bytes,
            tokens_per_block=config.groups[0].tokens_per_block,
            blocks_per_chunk=self.blocks_per_chunk,
            groups=max(group.group_id for group in config.groups) + 1,
            hash_bytes=_hash_bytes(vllm_config),
        )
        self.namespace = vllm_namespace(
            config, vllm_config, tenant=self.settings.tenant, extra=self.settings.namespace_extra
        )
        self._manager: TerraceManager | None = None
        self._worker: TerraceWorker | None = None

    def options(self, rank: int = 0) -> SessionOptions:
        """What a session of this engine is opened with."""
        world = self.config.parallel.world_size
        return SessionOptions(
            socket=self.settings.socket,
            engine=self.config.engine_id,
            namespace=self.namespace,
            geometry=self.geometry,
            rank=rank,
            store_workers=1 if self.replicated_layout else world,
            load_workers=world,
            call_budget_s=self.settings.call_budget_s,
            client="terrace-kv vllm",
        )

    @override
    def get_manager(self) -> OffloadingManager:
        """The scheduler's half. Does not wait for the daemon."""
        if self._manager is None:
            recompute_failed_loads(self._vllm_config)
            logger.info("terrace: daemon %s, %s, %s", self.settings.socket, self.namespace, self.geometry)
            self._manager = TerraceManager(
                SchedulerSession(self.options()),
                self._groups(),
                key_bytes=self.geometry.key_bytes,
                block_bytes=self.geometry.block_bytes,
                events=self.kv_events_config.enable_kv_cache_events,
                about=f"{self.namespace.model} {self.namespace.revision}",
            )
        return self._manager

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's half. Does not wait for the daemon. Raises `LayoutError` for a cache that it cannot copy."""
        if self._worker is None:
            rank = self.config.parallel.rank
            part = 0 if self.replicated_layout else rank
            layout = WorkerLayout(kv_caches, self.blocks_per_chunk, part * self.part_bytes, self.part_bytes)
            self._worker = open_worker(self.settings, self.options(rank), layout)
            if not report_failed_loads(self._worker.take_failed_requests):
                self._worker.shutdown()
                self._worker = None
                raise LayoutError(
                    "this vLLM cannot be told that a load failed: terrace-kv works with 0.32.0 and 0.33.0, "
                    "as the KV connector OffloadingConnector"
                )
            flush_in_step(self._worker.flush)
        return self._worker

    def _groups(self) -> list[Group]:
        kinds = getattr(self._kv_cache_config, "kv_cache_groups", None)
        return [
            Group(
                index=group.group_id,
                tokens_per_chunk=group.tokens_per_block * self.blocks_per_chunk,
                prefix=kinds is not None and _is_prefix(kinds[group.group_id].kv_cache_spec),
            )
            for group in self.config.groups
        ]


def _is_prefix(kv_cache_spec: Any) -> bool:
    """Whether vLLM looks a group's keys up from the first on."""
    return isinstance(getattr(kv_cache_spec, "first_spec", kv_cache_spec), FullAttentionSpec)


def _hash_bytes(vllm_config: Any) -> int:
    """Length of vLLM's block hashes."""
    if vllm_config is None:
        return 32
    from vllm.utils.hashing import get_hash_fn_by_name

    return len(get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)(b""))
