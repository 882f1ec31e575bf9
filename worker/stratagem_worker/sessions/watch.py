"""Looking after what lingers on a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from stratagem._ps_client.write_behind import Backlog

# What lingers is looked after so much later at most, if no other thread does before. Each look
# wakes the event loop, of which short functions feel every time.
_SECONDS = 0.005


class Watch:
    """Looks at what lingers for as long as anything does. Made on the event loop.

    There is one for all that waits for writes: a timer of each kind would wake the loop for itself.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._looks: list[Callable[[float], bool]] = []
        self._asked = self._awake = False

    def over(self, look: Callable[[float], bool]) -> None:
        """Look in a further way.

        Args:
            look: Called on the event loop with the present time, in seconds of a monotonic clock;
                returns whether anything lingers yet.
        """
        self._looks.append(look)

    def ask(self) -> None:
        """Look soon, because something lingers; in any thread."""
        self._asked = True
        if not self._awake:
            # A function may end when its worker has stopped already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.expect)

    def expect(self) -> None:
        """As `ask`, on the event loop, which later calls of `ask` need not wake."""
        if not self._awake:
            self._awake = True
            self._loop.call_later(_SECONDS, self._look)

    def _look(self) -> None:
        self._asked, now = False, time.monotonic()
        lingering = [look(now) for look in self._looks]
        # Before the last glance: a thread that asks from now on wakes the loop.
        self._awake = False
        if self._asked or any(lingering):
            self.expect()


# What a function wrote that runs on for longer is sent at the next look.
_LINGER_SECONDS = 0.002


class WorkerWriteBatcher:
    """Keeps writes back while there is more to run. Made on the event loop."""

    def __init__(self, watch: Watch, more_follow: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._more_follow = more_follow
        self._backlogs: set[Backlog] = set()
        watch.over(self._look)

    def keeps(self, backlog: Backlog) -> bool:
        """Return whether a write is to wait; in the thread that runs functions."""
        if not self._more_follow():
            return False
        self._backlogs.add(backlog)
        self._watch.ask()
        return True

    def _look(self, now: float) -> bool:
        for backlog in [*self._backlogs]:
            # First: it is added again after it has kept another write.
            self._backlogs.discard(backlog)
            if backlog.keeps_since(now - _LINGER_SECONDS):
                # It may have to wait until the socket has room.
                self._loop.run_in_executor(None, backlog.push)
            elif backlog.keeps_since(now):
                self._backlogs.add(backlog)
        return bool(self._backlogs)
