"""What a lookup and a store are answered, in a form that needs no Python per key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import ProtocolError
from .protocol import ANSWER_BYTES, NO_HIT_BYTES, LookupReply, Numbers, PrepareStoreReply, Scan, numbers

_NO_NUMBERS = numbers(b"")


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """Where the keys of one lookup are."""

    #: Names the lease until the session's next `end_step`; 0: nothing is leased.
    lease: int
    #: One answer byte for each key, query after query; `byte & ANSWER_MASK` is an `Answer`, `byte >> ORIGIN_SHIFT` its
    #: origin.
    answers: bytes
    #: For each hit, in order, its slot: a view of unsigned 32-bit integers.
    slots: Numbers
    #: The region that the slots lie in; 0 if there are none.
    region: int
    #: The connection that answered: equal to `SchedulerSession.epoch` as long as the lease can still be used.
    epoch: int


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What is to be stored where."""

    #: Indices of the keys to store, ascending; the others are there already. A view of unsigned 32-bit integers.
    store: Numbers
    #: One slot for each of them.
    slots: Numbers
    #: The region that the slots lie in.
    region: int
    #: The connection that answered.
    epoch: int


def all_missed(keys: int) -> LookupAnswer:
    """The answer for `keys` keys when there is nobody to ask."""
    return LookupAnswer(0, bytes(keys), _NO_NUMBERS, 0, 0)


def lookup_answer(
    reply: LookupReply, asked: Sequence[tuple[int, int]], keys: int, region: int, epoch: int
) -> LookupAnswer:
    """The reply to queries of (scan, number of keys), filled up with misses to `keys` answers. Raises
    `ProtocolError`.
    """
    wire = reply.answers
    if wire.translate(None, ANSWER_BYTES):
        raise ProtocolError("a byte that is no answer is among the answers")
    slots = numbers(reply.slots)
    if len(wire.translate(None, NO_HIT_BYTES)) != len(slots):
        raise ProtocolError(f"{len(slots)} slots came with another number of hits")
    parts: list[bytes] = []
    at = 0
    for scan, count in asked:
        end = at + count
        if scan == Scan.PREFIX:
            miss = wire.find(0, at, end)
            if miss >= 0:
                end = miss + 1
        part = wire[at:end]
        if len(part) != end - at:
            raise ProtocolError(f"{len(wire)} answers are fewer than were asked for")
        parts.append(part)
        parts.append(bytes(at + count - end))
        at = end
    if at != len(wire):
        raise ProtocolError(f"{len(wire)} answers are more than were asked for")
    answers = b"".join(parts)
    return LookupAnswer(reply.lease, answers + bytes(keys - len(answers)), slots, region, epoch)


def store_answer(reply: PrepareStoreReply, keys: int, region: int, epoch: int) -> StoreAnswer:
    """The reply to a store of `keys` keys. Raises `ProtocolError`."""
    store, slots = numbers(reply.store), numbers(reply.slots)
    if len(store) != len(slots) or (len(store) and store[-1] >= keys):
        raise ProtocolError(f"{len(store)} keys to store came with {len(slots)} slots, for {keys} keys")
    return StoreAnswer(store, slots, region, epoch)
