"""What a session is opened with."""

from __future__ import annotations

from dataclasses import dataclass

from .protocol import Geometry, Namespace

__all__ = ["Geometry", "Namespace", "SessionOptions"]


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Everything that a session needs to open, and to open again after the connection was lost."""

    #: Path of the daemon's socket.
    socket: str
    #: Name of the engine: the same in all its sessions, and in no other engine's.
    engine: str
    #: What makes bytes interchangeable.
    namespace: Namespace
    #: Shape of a block.
    geometry: Geometry
    #: Worker: its rank.
    rank: int = 0
    #: Scheduler: workers that must report a store before it counts. 0: the scheduler reports by itself.
    store_workers: int = 0
    #: Scheduler: workers that must report a load before it ends. 0: the scheduler reports by itself.
    load_workers: int = 0
    #: How long one call may wait for the daemon, in seconds.
    call_budget_s: float = 0.005
    #: How long lookups answer "ask again" while replies are overdue, before they answer "miss".
    stall_patience_s: float = 0.25
    #: Name and version, for the daemon's logs.
    client: str = "terrace-kv/0.1.0"
