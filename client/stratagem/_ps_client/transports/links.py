"""The connections to one endpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable

from stratagem._ps_client.transports.idle_links import IdleLinks
from stratagem_proto.sockets.client import Endpoint, SocketLink
from stratagem_proto.wire.segment import Segment, grown


class Links:
    """Connections to an endpoint, each of them for one call at a time. Thread-safe.

    Large tensors go through shared memory, if it `shares` and there is any.
    """

    def __init__(self, endpoint: Endpoint, shares: bool) -> None:
        self.endpoint = endpoint
        self._idle = IdleLinks()
        # More than that the server's budget, or the system, had no memory for; `trim` tries again.
        shares = shares and endpoint.can_share
        self._most_shared = self._wanted = sys.maxsize if shares else 0
        self._busy: set[SocketLink] = set()
        self._closed = False

    def connect(self) -> None:
        """Open the first connection; raise OSError if nobody, or not the server, answers."""
        self.give_back(SocketLink(self.endpoint), usable=True)

    def take(self, room: int, seconds: float, use: Callable[[SocketLink], None]) -> SocketLink:
        """Return a connection for a call.

        Args:
            room: Bytes of shared memory that the call would take.
            seconds: The most time to connect in.
            use: Told of it before the server has answered to it. Until it is given back, `close`
                closes it, too.

        Raises:
            OSError: Nobody answers.
            MalformedStreamError: Not the server answers.
        """

        def begin(link: SocketLink) -> None:
            self._busy.add(link)
            use(link)
            if self._closed:
                # Another thread has closed all that it knew of meanwhile.
                link.close()

        idle = self._fresh(room)
        if idle is None:
            return SocketLink(self.endpoint, seconds, begin)
        begin(idle)
        return idle

    def _fresh(self, room: int) -> SocketLink | None:
        """Return a link that is idle, and close those that are worn; None if there is none."""
        while (link := self._idle.take(room)) is not None and link.is_worn:
            link.close()
        return link

    def memory_of(self, link: SocketLink, room: int) -> Segment | None:
        """Return what a link shares with the server for a call; None if it is to send."""
        if not 0 < room <= self._most_shared:
            return None
        large_enough = link.segment is not None and link.segment.nbytes >= room
        if not large_enough and not link.share(grown(room)):
            self._most_shared = room - 1
            return None
        return link.segment

    def give_back(self, link: SocketLink, usable: bool) -> None:
        """End the use of a connection, after which another call can follow if it is `usable`."""
        self._busy.discard(link)
        if not usable or not self._idle.put(link):
            link.close()

    def trim(self) -> None:
        """Give up memory that was not used lately; called now and then."""
        self._idle.trim()
        self._most_shared = self._wanted

    def distrust(self) -> None:
        """Close all that is idle: where one connection broke, others will have."""
        self._idle.clear()

    def retire(self) -> None:
        """Let the calls under way be the last ones."""
        self._idle.close()

    def close(self) -> None:
        """End all calls, and those that begin from now on."""
        self._closed = True
        self.retire()
        for link in list(self._busy):
            link.close()
