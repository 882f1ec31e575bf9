"""Publishing versions: the values of all servers at one moment, for readers outside the cluster."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

import torch

from stratagem._parameter_server.checkpoints.saving import take_cut
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import publish
from stratagem_proto.errors import InvalidArgumentError, SessionLostError, StaleVersionError
from stratagem_proto.v1.checkpoint_pb2 import HoldStepsResponse

_LOG = logging.getLogger("stratagem")

# Between looks at how many steps there were.
_LOOK_SECONDS = 0.02

# An attempt of the thread that publishes now and then ends by then, for which its end waits.
_ATTEMPT_SECONDS = 10.0

# After a failure, and twice that after the next one.
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0

# Versions whose numbers a publisher remembers.
_REMEMBERED = 1024


class Publisher:
    """Publishes the versions of one strategy, one at a time. Thread-safe.

    Its requests have sessions of their own. So a version can be published by another thread than
    the program's, whose requests are held meanwhile, and would hold those of their session behind
    them.

    Args:
        store: The variables on the servers.
        local: Returns copies of what this process has besides, by name, such as its buffers.
    """

    def __init__(self, store: RemoteStore, local: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._store, self._local = store, local
        self._servers: ServerGroup | None = None
        self._publishing = threading.Lock()
        self._periodic: list[PeriodicPublishing] = []
        self._versions: deque[int] = deque(maxlen=_REMEMBERED)

    def publish(self, seconds: float | None = None) -> int:
        """Publish what is there at one moment during the call; return the number of the version.

        Steps of workers get so many seconds to be over, or `peer_seconds`.
        """
        if seconds is None:
            seconds = self._store.peer_seconds
        with self._publishing:
            if self._servers is None:
                self._servers = self._store.servers.beside()
            try:
                version = _published(self._servers, self._local(), seconds)
            except SessionLostError:
                # The server has begun anew, or has taken this process for dead.
                self._servers.close()
                self._servers = None
                raise
            self._versions.append(version)
            return version

    def versions_behind(self, version: int) -> int:
        """Return how many versions were published since; as `ParameterServerStrategy`'s."""
        versions = list(self._versions)
        if version not in versions:
            raise StaleVersionError(
                f"version {version} is none of the last {len(versions)} that this program has "
                f"published; at most {_REMEMBERED} are remembered, and none of a program before"
            )
        return len(versions) - bisect_right(versions, version)

    def every(self, seconds: float | None, steps: int | None) -> PeriodicPublishing:
        """Publish now and then; as `ParameterServerStrategy.publish_every`."""
        if (seconds is None) == (steps is None):
            raise InvalidArgumentError(
                "publish_every() takes seconds=, such as 0.2, or steps=, and not both"
            )
        if seconds is not None and not 0.0 < seconds < threading.TIMEOUT_MAX:
            raise InvalidArgumentError(f"publish_every(seconds={seconds}) needs more than 0 s")
        if steps is not None and steps < 1:
            raise InvalidArgumentError(f"publish_every(steps={steps}) needs at least 1 step")
        begun = self._store.servers.steps
        attempt = partial(self.publish, min(self._store.peer_seconds, _ATTEMPT_SECONDS))
        periodic = PeriodicPublishing(attempt, lambda: begun.begun, seconds, steps)
        self._periodic.append(periodic)
        return periodic

    def close(self) -> None:
        """Publish nothing more, and end the sessions."""
        for periodic in self._periodic:
            periodic.close()
        with self._publishing:
            if self._servers is not None:
                self._servers.close()
                self._servers = None


def _published(servers: ServerGroup, local: Mapping[str, torch.Tensor], seconds: float) -> int:
    version = 0

    def mark(cut: bytes, answers: Collection[HoldStepsResponse]) -> None:
        nonlocal version
        now = time.time_ns() // 1_000_000
        version = max(now, *(each.published + 1 for each in answers))
        first = min(servers.called)
        servers.call_all(
            {
                server: publish(cut, version, now, local if server == first else {})
                for server in servers.called
            }
        )

    take_cut(servers, mark, seconds, is_step=True)
    return version


class PeriodicPublishing:
    """Publishes versions now and then, in a thread of its own, until it is closed.

    A version that cannot be published is told once, and tried again; training goes on. Close it by
    `close`, or at the end of a `with` block.

    Args:
        publish: Publishes a version, and returns its number.
        steps_begun: Returns how many steps this process has begun.
        seconds: The time from one version to the next, in seconds; None to count steps.
        steps: How many steps lie between two versions; None to count seconds.

    Attributes:
        version: The number of the last version that it has published; 0 before the first.
        error: Why the last attempt has failed; None if it has not.
    """

    def __init__(
        self,
        publish: Callable[[], int],
        steps_begun: Callable[[], int],
        seconds: float | None,
        steps: int | None,
    ) -> None:
        self._publish, self._steps_begun = publish, steps_begun
        self._seconds, self._steps = seconds, steps
        self.version = 0
        self.error: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratagem-publishing", daemon=True)
        self._thread.start()

    def __enter__(self) -> PeriodicPublishing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Publish nothing more; wait for a version that is being published."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while self._wait_until_due():
            try:
                self.version = self._publish()
            except Exception as error:
                if self.error is None:
                    _LOG.warning("no version could be published, which is tried again: %s", error)
                self.error = error
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self.error, pause = None, _FIRST_PAUSE_SECONDS

    def _wait_until_due(self) -> bool:
        """Wait until a version is to be published; return False if it is closed by then."""
        if self._steps is None:
            return not self._closed.wait(self._seconds)
        due = self._steps_begun() + self._steps
        while self._steps_begun() < due:
            if self._closed.wait(_LOOK_SECONDS):
                return False
        return not self._closed.is_set()
