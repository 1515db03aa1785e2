"""The Python client of the Terrace daemon.

    from terrace_kv import Geometry, Namespace, SchedulerSession, SessionOptions

    session = SchedulerSession(SessionOptions(socket="/run/terrace/terrace.sock", engine="e1",
                                              namespace=Namespace(model="m"), geometry=Geometry(4096, 16, 1, 1, 32)))

`terrace_kv.session` says what sessions do; `terrace_kv.vllm` is the adapter for vLLM.
"""

from .answers import LookupAnswer, StoreAnswer
from .errors import TerraceError
from .options import SessionOptions
from .protocol import (
    ANSWER_MASK,
    ORIGIN_SHIFT,
    WANT_EVENTS,
    WANT_STATS,
    Answer,
    CompletedJob,
    EndStepReply,
    ForeignRegion,
    Geometry,
    LeaseEnd,
    Namespace,
    Scan,
    TierInfo,
    numbers_to_bytes,
)
from .region import Mapping
from .session import SchedulerSession, next_job
from .tier_session import TierSession
from .worker_session import WorkerSession

__version__ = "0.1.0"

__all__ = [
    "ANSWER_MASK",
    "ORIGIN_SHIFT",
    "WANT_EVENTS",
    "WANT_STATS",
    "Answer",
    "CompletedJob",
    "EndStepReply",
    "ForeignRegion",
    "Geometry",
    "LeaseEnd",
    "LookupAnswer",
    "Mapping",
    "Namespace",
    "Scan",
    "SchedulerSession",
    "SessionOptions",
    "StoreAnswer",
    "TerraceError",
    "TierInfo",
    "TierSession",
    "WorkerSession",
    "next_job",
    "numbers_to_bytes",
]
