"""The daemon's events as vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent, OffloadKey

from ..protocol import EventBatch, TierInfo

_STORED, _REMOVED = 0, 1
MEDIA = (Medium.CPU, Medium.STORAGE)
LOCALITIES = (Locality.LOCAL, Locality.REMOTE)
#: Batches kept until vLLM takes them.
MOST_BATCHES = 65536


def split_keys(keys: bytes, key_bytes: int) -> list[OffloadKey]:
    """The keys of a string of keys."""
    return [OffloadKey(keys[at : at + key_bytes]) for at in range(0, len(keys), key_bytes)]


def offloading_events(
    batches: Iterable[EventBatch], tiers: Sequence[TierInfo], key_bytes: int
) -> Iterable[OffloadingEvent]:
    """vLLM's events. That a whole primary was cleared has no event in vLLM: it knows of a reset before we do.

    Blocks of the primary have no owner and no locality, as in vLLM's own primary; those of a tier are owned by the
    first tier of its kind.
    """
    for batch in batches:
        if batch.what not in (_STORED, _REMOVED) or batch.medium >= len(MEDIA) or batch.locality >= len(LOCALITIES):
            continue
        kind = (batch.medium, batch.locality)
        owner = next((tier.name for tier in tiers if (tier.medium, tier.locality) == kind), None)
        stored_below = batch.medium > 0
        yield OffloadingEvent(
            keys=split_keys(batch.keys, key_bytes),
            medium=MEDIA[batch.medium],
            removed=batch.what == _REMOVED,
            locality=LOCALITIES[batch.locality] if stored_below else None,
            ownership=owner if stored_below else None,
            removal_expected=stored_below and batch.what == _STORED,
        )
