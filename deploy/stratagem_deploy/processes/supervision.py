"""What a run of several processes does when one of them ends or a signal comes.

It starts some again: how often, and when, is decided here too.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Collection, Iterable

from stratagem_deploy.processes.replica_restarts import ReplicaRestarts

SUPERSEDED = os.EX_TEMPFAIL
"""The exit code of a process in whose place another one works; again, it would stand by."""

# What argparse, click and Python itself end with when arguments cannot be: the same arguments
# cannot be the next time either.
USAGE_ERROR = 2

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


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
        if self._comes_back(name, code) and self._replicas.grant(name, now):
            return 0
        goes_on = self._servers_go_on or not is_server or name in self._stateless
        if goes_on and self.restarts.grant(name, code, now):
            return 0
        self.running.discard(name)
        if code == 0 and not is_server and self._spares:
            return self._finish()
        if self.failure or self._finished or (code == 0 and not is_server):
            return 0
        self.failure = name
        self.exit_code = 1 if is_server else self._code_of_script(code)
        self.running.difference_update(self._abandon())
        return 0 if self.interrupted else signal.SIGTERM

    def _comes_back(self, name: str, code: int) -> bool:
        """Return whether a process may be a replica that goes on with the state of others."""
        # What a script itself makes of its arguments and its data, it would make of them again.
        return name not in self.running or code < 0 or code == SUPERSEDED

    def _finish(self) -> int:
        """End those that stand by: the work is done."""
        self._finished = True
        self.running.difference_update(self._abandon())
        return signal.SIGTERM if self.running and not self.interrupted else 0

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

    def _code_of_script(self, code: int) -> int:
        """Return the code of a shell, without our own SIGKILL after an interruption."""
        return code if code > 0 else 128 + (self.interrupted or -code)
