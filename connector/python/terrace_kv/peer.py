"""The process at the other end of a connection."""

from __future__ import annotations

import os
import select
import socket
import struct

_CREDENTIALS = struct.Struct("iII")


class Peer:
    """The daemon's process, watched as far as this process can see it."""

    def __init__(self, sock: socket.socket) -> None:
        """Of a connected Unix socket."""
        self._descriptor = -1
        #: Its number here; 0 if it lies in a process namespace that this process does not see.
        self.pid = 0
        try:
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.pid = _CREDENTIALS.unpack(credentials)[0]
            if self.pid > 0:
                self._descriptor = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            pass  # Not to be watched: a system without pidfds, or the process is gone already.

    @property
    def watched(self) -> bool:
        """Whether `gone` can be true."""
        return self._descriptor >= 0

    def gone(self) -> bool:
        """Whether the process has ended, and all that it did on a GPU with it."""
        if self._descriptor < 0:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Ends the watch."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()
