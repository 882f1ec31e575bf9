"""What a run of several processes does when one of them ends or a signal comes. Pure.

It starts some again: how often, and when, is decided here too.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping

SUPERSEDED = os.EX_TEMPFAIL
"""The exit code of a process in whose place another one works; again, it would stand by."""

# What argparse, click and Python itself end with when arguments cannot be: the same arguments
# cannot be the next time either.
USAGE_ERROR = 2

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0

# What has run for so long does not fail at its start.
_SOUND_SECONDS = 60.0


class Restarts:
    """A number of restarts, which all processes share, each later than the one before.

    Args:
        most: How many.

    Attributes:
        granted: How many of them are used up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._due: dict[str, float] = {}
        self.granted = 0

    @property
    def next_due(self) -> float:
        """When the next process is to be started; infinity if none is."""
        return min(self._due.values(), default=math.inf)

    @property
    def waiting(self) -> Collection[str]:
        """The processes that are to be started."""
        return self._due.keys()

    def grant(self, name: str, code: int, now: float) -> bool:
        """Return whether a process is started again; if so, it is due then.

        Args:
            name: Its name.
            code: How it ended, as `Popen.returncode`.
            now: Seconds of a monotonic clock.
        """
        if code in (0, USAGE_ERROR) or self.granted == self._most:
            return False
        delay = min(_FIRST_SECONDS * 2**self.granted, _LONGEST_SECONDS)
        self._due[name] = now + delay
        self.granted += 1
        return True

    def take_due(self, now: float) -> list[str]:
        """Return the processes to start now, each once."""
        due = [name for name, moment in self._due.items() if moment <= now]
        for name in due:
            del self._due[name]
        return due

    def abandon(self) -> list[str]:
        """Return what waits for its start, and grant no more."""
        waiting = list(self._due)
        self._due.clear()
        self._most = self.granted
        return waiting


class ReplicaRestarts(Restarts):
    """Restarts of replicas, whose task goes on without them meanwhile.

    A replica is started again however often it ends, since the others have its state. The sooner it
    ends again, the longer the next start waits.

    Args:
        tasks: The task of each replica, by its name; more may come.
        needs_no_other: Returns whether one may be started again even if no other one of its task
            runs.
    """

    def __init__(
        self,
        tasks: Mapping[str, str],
        needs_no_other: Callable[[str], bool] = lambda name: False,
    ) -> None:
        super().__init__(most=0)
        self._tasks, self._needs_no_other = tasks, needs_no_other
        # When a replica was started again last, and how often it was soon after another time.
        self._started: dict[str, float] = {}
        self._quick: dict[str, int] = {}

    def grant(self, name: str, code: int, now: float) -> bool:
        """Return whether a process is started again, however it ended; if so, it is due then."""
        task = self._tasks.get(name)
        if task is None:
            return False
        others = {one for one, its in self._tasks.items() if its == task} - {name}
        if others <= self._due.keys() and not self._needs_no_other(name):
            return False
        is_quick = now - self._started.get(name, -math.inf) < _SOUND_SECONDS
        self._quick[name] = self._quick.get(name, 0) + 1 if is_quick else 0
        self._due[name] = now + min(_FIRST_SECONDS * 2 ** self._quick[name], _LONGEST_SECONDS)
        return True

    def take_due(self, now: float) -> list[str]:
        """Return the replicas to start now, each once."""
        due = super().take_due(now)
        self._started |= dict.fromkeys(due, now)
        return due

    def abandon(self) -> list[str]:
        """Return what waits for its start, and start nothing any more."""
        self._tasks = {}
        return super().abandon()


class Supervision:
    """Takes events and answers with the signal to send to what still runs, or 0.

    Args:
        workers: The names of the workers.
        restarts: Decides which processes are started again.
        servers_go_on: Whether a server that is started again goes on where it was.
        replicas: Decides which replicas of servers, and which workers that stand by for each other,
            are started again, whatever `restarts` allows.
        stateless: The names of servers that keep nothing, and are started again like workers.
        spares: Whether one worker does the work, and the others stand by. The run ends when it has.

    Attributes:
        running: Names of the workers that have not ended, or are to be started again.
        restarts: Those that are. When the run ends, nobody is.
        failure: Name of the process that failed first for good, or "".
        interrupted: The signal that ended the run from outside, or 0.
    """

    def __init__(
        self,
        workers: Iterable[str],
        restarts: Restarts,
        servers_go_on: bool = False,
        replicas: ReplicaRestarts | None = None,
        stateless: Collection[str] = (),
        spares: bool = False,
    ) -> None:
        self._servers_go_on, self._stateless = servers_go_on, stateless
        self._spares = spares
        self._replicas = replicas or ReplicaRestarts({})
        self.running = set(workers)
        self.restarts = restarts
        self.failure = ""
        self._finished = False
        self.interrupted = 0
        self.exit_code = 0

    @property
    def next_due(self) -> float:
        """When the next process is to be started; infinity if none is."""
        return min(self.restarts.next_due, self._replicas.next_due)

    @property
    def rejoining(self) -> Collection[str]:
        """The replicas that have ended and are to be started again."""
        return self._replicas.waiting

    def take_due(self, now: float) -> list[str]:
        """Return the processes to start now, each once."""
        return [*self.restarts.take_due(now), *self._replicas.take_due(now)]

    def ended(self, name: str, code: int, now: float) -> int:
        """Note that a process has ended.

        Args:
            name: Its name; one that is no worker's is a server's.
            code: As `Popen.returncode`.
            now: Seconds of a monotonic clock.
        """
        # A server that ends before the script does has failed, whatever its code. Unless it has a
        # log, what it held has ended with it, so that no other can take its place.
        is_server = name not in self.running
        # What a script itself makes of its arguments and its data, it would make of them again.
        comes_back = is_server or code < 0 or code == SUPERSEDED
        if comes_back and self._replicas.grant(name, code, now):
            return 0
        goes_on = self._servers_go_on or not is_server or name in self._stateless
        if goes_on and self.restarts.grant(name, code, now):
            return 0
        self.running.discard(name)
        succeeded = code == 0 and not is_server
        if succeeded and self._spares:
            # The work is done, so those that stand by end.
            self._finished = True
            self.running.difference_update(self._abandon())
            return signal.SIGTERM if self.running and not self.interrupted else 0
        if self.failure or self._finished or succeeded:
            return 0
        self.failure = name
        # As a shell says it, and not our own SIGKILL after an interruption.
        script_code = code if code > 0 else 128 + (self.interrupted or -code)
        self.exit_code = 1 if is_server else script_code
        self.running.difference_update(self._abandon())
        return 0 if self.interrupted else signal.SIGTERM

    def signalled(self, signum: int) -> int:
        """Pass a signal on; a second one ends the processes at once."""
        if self.interrupted:
            return signal.SIGKILL
        self.interrupted = signum
        for name in self._abandon():
            if name in self.running:
                self.ended(name, -signum, now=0.0)
        return signum

    def _abandon(self) -> list[str]:
        """Start nothing any more; return what waited for that."""
        return self.restarts.abandon() + self._replicas.abandon()
