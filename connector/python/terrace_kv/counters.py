"""What a session counts."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts since the session began. Written by the session's threads, read by any."""

    #: Replies that came in time.
    round_trips: int = 0
    #: Time that calls waited, in microseconds: all, and the longest.
    waited_us: int = 0
    longest_wait_us: int = 0
    #: Calls of `lookup`, and the keys in them.
    lookups: int = 0
    lookup_keys: int = 0
    #: Lookups that were sent ahead of a step, and those of them that a call of `lookup` took.
    asked_ahead: int = 0
    taken_ahead: int = 0
    #: Calls of `prepare_store`, and those that were given nothing.
    stores: int = 0
    dropped_stores: int = 0
    #: Stores for which the pool had no room.
    no_room: int = 0
    #: Calls that ran into their budget, and replies that came after it.
    timeouts: int = 0
    late_replies: int = 0
    #: Lookups answered "ask again", and "miss", because the daemon is slow.
    retries: int = 0
    given_up: int = 0
    #: Lookups answered "miss" because the daemon is away.
    away: int = 0
    #: Connections made, lost, and attempts that failed.
    connections: int = 0
    lost_connections: int = 0
    failed_attempts: int = 0
    #: Error frames, and bytes that were no valid frame.
    refused: int = 0
    protocol_errors: int = 0
    #: Calls beyond a limit that the daemon had told.
    over_limit: int = 0
    #: Messages that found the buffer before the socket full.
    overflows: int = 0
    #: Ends of steps that were kept because the daemon was slow, and loads not begun because their lease was void.
    kept_steps: int = 0
    void_loads: int = 0
    #: Worker: copies not begun because the job was handed out before the worker attached, and reports for nobody.
    refused_copies: int = 0
    dropped_reports: int = 0
    #: Worker: stores that the daemon copied too slowly to be waited for.
    given_up_copies: int = 0

    _logged: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    def waited(self, seconds: float) -> None:
        """A call waited this long."""
        micros = int(seconds * 1e6)
        self.waited_us += micros
        if micros > self.longest_wait_us:
            self.longest_wait_us = micros

    def log_refusal(self, log: logging.Logger, what: str, code: int, message: str) -> None:
        """Logs a refusal, each kind and code once a minute at most: a bound on what a broken engine writes."""
        now = time.monotonic()
        if now - self._logged.get((what, code), -60.0) >= 60.0:
            self._logged[what, code] = now
            log.warning("terrace: the daemon refused %s (code %d): %s", what, code, message)

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        counts = asdict(self)
        del counts["_logged"]
        return counts
