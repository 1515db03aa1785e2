"""What can go wrong on the way to the daemon.

Sessions handle all of these themselves: an absent, sick or hostile daemon is a miss. They reach a caller only from the
parts below a session.
"""

from __future__ import annotations

__all__ = ["ConnectionLost", "Overflow", "ProtocolError", "Refused", "RegionError", "TerraceError"]


class TerraceError(Exception):
    """Base of all errors of this package."""


class ProtocolError(TerraceError):
    """Bytes that are no valid frame or body. The connection they came over cannot be used any more."""


class ConnectionLost(TerraceError):
    """The daemon closed the connection, or it broke."""


class Overflow(TerraceError):
    """The daemon does not take what is sent and the bounded buffer before the socket is full, or the message is longer
    than allowed.
    """


class Refused(TerraceError):
    """The daemon answered with an error frame."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the daemon refused with code {code}: {message}")
        #: An `ErrorCode` number.
        self.code = code
        #: The daemon's words.
        self.message = message


class RegionError(TerraceError):
    """The descriptor that came with the greeting is no usable region."""
