"""One moment on all servers: which steps of which clients may go on.

Pure: the time comes in as an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from stratagem_proto.errors import AbortedError, InvalidArgumentError
from stratagem_proto.v1.session_pb2 import WorkerReport

# Steps that wait for longer are let go; who takes the cut tries again later.
HOLD_SECONDS = 2.0

# What those wait for who look at the steps of clients.
STEPS = "steps"


@dataclass
class Progress:
    """How far a client has come.

    Attributes:
        label: The client, for messages.
        begun: The last step of which a request was admitted.
        finished: The last step that the client has said to be over.
        report: What it has said with that.
    """

    label: str
    begun: int = 0
    finished: int = 0
    report: bytes = b""


@dataclass
class _Hold:
    cut: bytes
    until: float
    begun: dict[bytes, int]


@dataclass
class CheckpointGate:
    """Admits requests by the steps that they are parts of.

    While a cut is taken, only steps that had begun before go on, on whichever server.

    Attributes:
        applying: How many admitted requests have not ended.
    """

    applying: int = 0
    _clients: dict[bytes, Progress] = field(default_factory=dict)
    _left: dict[str, Progress] = field(default_factory=dict)
    _hold: _Hold | None = None
    _over: set[bytes] = field(default_factory=set)

    def admits(self, client: bytes, label: str, step: int, now: float) -> bool:
        """Return whether a request may go on; then `end_request` must follow."""
        hold = self._holding(now)
        if hold is not None and not 0 < step <= hold.begun.get(client, 0):
            return False
        if step:
            progress = self._clients.setdefault(client, Progress(label))
            progress.begun = max(progress.begun, step)
        self.applying += 1
        return True

    def end_request(self) -> None:
        """Note the end of a request that was admitted."""
        self.applying -= 1

    def remaining(self, now: float) -> float:
        """Seconds until what is held now is let go by itself."""
        hold = self._holding(now)
        return hold.until - now if hold is not None else 0.0

    def finish(self, client: bytes, label: str, step: int, report: bytes) -> None:
        """Note what a client has finished, and what it says about that.

        Raises:
            InvalidArgumentError: What it says could be in no checkpoint.
        """
        progress = self._clients.get(client)
        if report and (progress is None or report != progress.report):
            check_report(label, report)
        if progress is None and report:
            progress = self._clients[client] = Progress(label)
        if progress is not None and step >= progress.finished:
            progress.finished, progress.report = step, report

    def forget(self, client: bytes, is_task: bool) -> None:
        """Note that a client is gone; nothing more will come of its steps.

        Args:
            client: Who.
            is_task: Whether it is a task of the cluster, which may come back for what it has
                reported. Of others there are as many as open sessions.
        """
        progress = self._clients.pop(client, None)
        if is_task and progress is not None and progress.report:
            self._left[progress.label] = progress

    def hold(self, cut: bytes, begun: Mapping[bytes, int], now: float) -> None:
        """Begin a cut, or learn of steps that have begun on other servers.

        Raises:
            AbortedError: Another cut is being taken, or this one took too long.
        """
        hold = self._holding(now)
        if hold is None:
            self._require_new(cut)
            known = {client: each.begun for client, each in self._clients.items()}
            hold = self._hold = _Hold(cut, now + HOLD_SECONDS, known)
        if hold.cut != cut:
            raise AbortedError(
                "another client takes a checkpoint or a snapshot; try again in a moment"
            )
        for client, step in begun.items():
            hold.begun[client] = max(hold.begun.get(client, 0), step)

    def _require_new(self, cut: bytes) -> None:
        if cut in self._over:
            raise AbortedError(
                f"the steps of all clients were not finished in {HOLD_SECONDS:g} s; try again"
            )

    def holds(self, cut: bytes, now: float) -> bool:
        """Return whether a cut is being taken."""
        hold = self._holding(now)
        return hold is not None and hold.cut == cut

    def release(self, cut: bytes) -> None:
        """End a cut."""
        if self._hold is not None and self._hold.cut == cut:
            self._end()

    def progress(self) -> Mapping[bytes, Progress]:
        """Return how far each client has come."""
        return self._clients

    def left(self) -> Collection[Progress]:
        """Of each task whose client is gone, what that one reported last."""
        return self._left.values()

    def _holding(self, now: float) -> _Hold | None:
        if self._hold is not None and now >= self._hold.until:
            self._end()
        return self._hold

    def _end(self) -> None:
        assert self._hold is not None
        # Late messages of a cut that is over must not begin it anew. Only the last one can have
        # any.
        self._over = {self._hold.cut}
        self._hold = None


# Clients send 60 kB for each of two steps at most.
_MOST_BYTES = 256 << 10


def check_report(label: str, report: bytes) -> None:
    """Check what a client reports as it arrives, before a save meets it.

    Args:
        label: The client, for messages.
        report: A serialised WorkerReport.

    Raises:
        InvalidArgumentError: It is none, has no JSON objects, or is too long.
    """
    if len(report) > _MOST_BYTES:
        raise InvalidArgumentError(
            f"{label} reports {len(report)} bytes of what it needs to go on; at most "
            f"{_MOST_BYTES} are kept for checkpoints"
        )
    try:
        states = [json.loads(each.content) for each in WorkerReport.FromString(report).states]
    except (DecodeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{label} reports what is no JSON, so that no checkpoint could have it: {error}"
        ) from error
    if not all(isinstance(state, dict) for state in states):
        raise InvalidArgumentError(
            f"{label} reports JSON that is no object of states by their names"
        )
