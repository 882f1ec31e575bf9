"""Small writes that wait for those of the functions that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratagem._ps_client.write_behind import Backlog
from stratagem_worker.sessions.watch import Watch

# What a function wrote that runs on for longer is sent at the next look.
_LINGER_SECONDS = 0.002


class WorkerWriteBatcher:
    """Keeps writes back while there is more to run. Made on the event loop.

    Args:
        watch: Looks whether they linger for too long.
        more_follow: Whether there is something to run next.
    """

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
