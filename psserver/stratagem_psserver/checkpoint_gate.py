"""The gate that holds steps back while all servers take a checkpoint at the same cut.

A cut is a moment at which no step is under way on any server. This module is pure: time is an
argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from stratagem_proto.errors import AbortedError, InvalidArgumentError
from stratagem_proto.v1.session_pb2 import WorkerReport

# Held steps go on after this time; the client that takes the cut then tries again.
HOLD_SECONDS = 2.0

# Cuts that are remembered. No message is late by as many: each cut takes several round trips.
_MOST_OVER = 10_000

# The subject of waits for the steps of clients.
STEPS = "steps"


@dataclass
class Progress:
    """The steps that a client has begun and finished.

    Attributes:
        label: The client's name, for messages.
        begun: The last step of which a request was admitted.
        finished: The last step that the client has reported as finished.
        report: The `WorkerReport` that came with it: what the worker needs to go on after that
            step.
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
    """Admits requests according to the steps that they belong to.

    While a cut is taken, only requests of steps go on that had begun before on some server.

    Attributes:
        applying: The number of admitted requests that have not ended.
    """

    applying: int = 0
    _clients: dict[bytes, Progress] = field(default_factory=dict)
    _left: dict[str, Progress] = field(default_factory=dict)
    _hold: _Hold | None = None
    _over: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def admits(self, client: bytes, label: str, step: int, now: float) -> bool:
        """Return whether a request is admitted; if so, `end_request` must follow."""
        hold = self._holding(now)
        if hold is not None and not 0 < step <= hold.begun.get(client, 0):
            return False
        if step:
            progress = self._clients.setdefault(client, Progress(label))
            progress.begun = max(progress.begun, step)
        self.applying += 1
        return True

    def end_request(self) -> None:
        self.applying -= 1

    def remaining(self, now: float) -> float:
        """Return the seconds until the present hold ends by itself; 0 if there is none."""
        hold = self._holding(now)
        return hold.until - now if hold is not None else 0.0

    def finish(self, client: bytes, label: str, step: int, report: bytes) -> bool:
        """Note the last step that a client has finished, and its report.

        Returns:
            Whether it says more than what was known.

        Raises:
            InvalidArgumentError: A checkpoint could not contain the report; see `check_report`.
        """
        progress = self._clients.get(client)
        if report and (progress is None or report != progress.report):
            check_report(label, report)
        if progress is None and report:
            progress = self._clients[client] = Progress(label)
        if progress is None or step < progress.finished:
            return False
        is_new = (progress.finished, progress.report) != (step, report)
        progress.finished, progress.report = step, report
        return is_new

    def forget(self, client: bytes, is_task: bool) -> None:
        """Note that a client is gone and sends no more requests.

        Args:
            client: The client.
            is_task: Whether it is a task of the cluster. Its last report is kept, since the task
                may come back; other clients are too many for that.
        """
        progress = self._clients.pop(client, None)
        if is_task and progress is not None and progress.report:
            self._left[progress.label] = progress

    def hold(self, cut: bytes, begun: Mapping[bytes, int], now: float) -> None:
        """Begin a cut, or add steps that have begun on other servers.

        Args:
            cut: Identifies the cut.
            begun: By client: the last step that it has begun on another server.
            now: The time.

        Raises:
            AbortedError: Another cut is being taken, or this one took too long.
        """
        hold = self._holding(now)
        if hold is None:
            if cut in self._over:
                raise AbortedError(
                    f"the steps of all clients were not finished in {HOLD_SECONDS:g} s; try again"
                )
            known = {client: each.begun for client, each in self._clients.items()}
            hold = self._hold = _Hold(cut, now + HOLD_SECONDS, known)
        if hold.cut != cut:
            raise AbortedError(
                "another client takes a checkpoint or a snapshot; try again in a moment"
            )
        for client, step in begun.items():
            hold.begun[client] = max(hold.begun.get(client, 0), step)

    def holds(self, cut: bytes, now: float) -> bool:
        """Return whether this cut is being taken."""
        hold = self._holding(now)
        return hold is not None and hold.cut == cut

    def release(self, cut: bytes) -> None:
        """End a cut, which nobody begins again."""
        if self._hold is not None and self._hold.cut == cut:
            self._end()
        self._note_over(cut)

    def progress(self) -> Mapping[bytes, Progress]:
        return self._clients

    def unfinished(self) -> list[Progress]:
        """Return the clients with a step that has begun and not finished."""
        return [each for each in self._clients.values() if each.finished < each.begun]

    def left(self) -> Collection[Progress]:
        """Return the last reports of tasks whose clients are gone."""
        return self._left.values()

    def facts(self) -> dict[str, Any]:
        """Return the progress of all clients, as JSON."""

        def described(one: Progress) -> list[Any]:
            return [one.label, one.begun, one.finished, b64encode(one.report).decode()]

        return {
            "clients": {client.hex(): described(one) for client, one in self._clients.items()},
            "left": list(map(described, self._left.values())),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        def progress(label: str, begun: int, finished: int, report: str) -> Progress:
            return Progress(label, begun, finished, b64decode(report))

        for client, item in facts["clients"].items():
            self._clients[bytes.fromhex(client)] = progress(*item)
        self._left = {one.label: one for one in (progress(*item) for item in facts["left"])}

    def _holding(self, now: float) -> _Hold | None:
        if self._hold is not None and now >= self._hold.until:
            self._end()
        return self._hold

    def _end(self) -> None:
        assert self._hold is not None
        self._note_over(self._hold.cut)
        self._hold = None

    def _note_over(self, cut: bytes) -> None:
        """Remember a cut: a late message that began it again would make it another moment here."""
        self._over[cut] = None
        if len(self._over) > _MOST_OVER:
            self._over.popitem(last=False)


# Clients send at most 60 kB for each of two steps.
_MOST_BYTES = 256 << 10


def check_report(label: str, report: bytes) -> None:
    """Check a client's report when it arrives, since a checkpoint would contain it."""
    if len(report) > _MOST_BYTES:
        raise InvalidArgumentError(
            f"{label} reports {len(report)} bytes of what it needs to go on; at most "
            f"{_MOST_BYTES} are kept for checkpoints"
        )
    try:
        states = [json.loads(each.content) for each in WorkerReport.FromString(report).states]
    except (DecodeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{label} reports a state that is not JSON, which no checkpoint can contain: {error}"
        ) from error
    if not all(isinstance(state, dict) for state in states):
        raise InvalidArgumentError(
            f"{label} reports a state that is not a JSON object of values by name"
        )
