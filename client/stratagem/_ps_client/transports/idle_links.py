"""Connections of which no call has need now."""

from __future__ import annotations

import threading

from stratagem_proto.sockets.client import SocketLink

# Kept open while there is nothing to call; more are closed.
_MOST = 8


class IdleLinks:
    """Keeps those that share memory apart, so that small calls leave them alone."""

    def __init__(self) -> None:
        self._plain: list[SocketLink] = []
        self._sharing: list[SocketLink] = []
        # Those that nobody has used since the last `trim`.
        self._stale: set[SocketLink] = set()
        self._lock = threading.Lock()
        self._closed = False

    def take(self, room: int) -> SocketLink | None:
        """Return the best link for a call that would share `room` bytes, if there is any."""
        with self._lock:
            if room and self._sharing:
                if len(self._sharing) == 1:
                    return self._sharing.pop()
                best = min(self._sharing, key=lambda link: _waste(link, room))
                self._sharing.remove(best)
                return best
            return self._plain.pop() if self._plain else None

    def put(self, link: SocketLink) -> bool:
        """Take a link back; return whether there is place for it."""
        with self._lock:
            links = self._plain if link.segment is None else self._sharing
            if self._closed or len(links) >= _MOST:
                return False
            links.append(link)
            self._stale.discard(link)
            return True

    def trim(self) -> None:
        """Close those that share memory and had no call since this was last called."""
        with self._lock:
            for link in self._stale.intersection(self._sharing):
                self._sharing.remove(link)
                link.close()
            self._stale = set(self._sharing)

    def close(self) -> None:
        """Close all, and take none back any more."""
        self._closed = True
        self.clear()

    def clear(self) -> None:
        """Close all."""
        with self._lock:
            for links in (self._plain, self._sharing):
                while links:
                    links.pop().close()


def _waste(link: SocketLink, room: int) -> tuple[bool, int]:
    nbytes = link.segment.nbytes if link.segment else 0
    return nbytes < room, abs(nbytes - room)
