"""Finding one moment on all servers, between steps of all clients, and reading them as of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratagem._core.waiting import Awaited, AwaitedTask, Wait
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.pushing.global_norm import finish_all, first_unfinished
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import (
    close_snapshot,
    hold_steps,
    open_snapshot,
    release_steps,
)
from stratagem._ps_client.requests.request import Request
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    StratagemError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import ClientProgress, HoldStepsResponse
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR

# Time that a server may take to answer how far clients are.
_LOOK_SECONDS = 0.05
# Steps that take longer are not held up: the cut is tried again.
_ATTEMPT_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


Mark = Callable[[bytes], Request[Any]]
"""Makes of the name of a cut the request that has a server mark its variables."""


@dataclass(frozen=True)
class Cut:
    """A moment that all servers have marked.

    Attributes:
        name: The servers know it by this.
        reports: What each client has reported after its last step before it, by task.
    """

    name: bytes
    reports: Mapping[str, bytes]


def take_cut(servers: ServerGroup, mark: Mark, seconds: float) -> Cut:
    """Have all servers mark their variables between steps of all clients.

    Steps that no server has a part of yet wait until those are over that some server has a part of,
    at most for a second; then they are let go, and it is tried again. `mark` makes what is sent to
    each server then, which ends the hold.

    Raises:
        DeadlineExceededError: Clients were in the midst of a step whenever it was tried, for so
            many seconds; it names them.
    """
    give_up_at = time.monotonic() + seconds
    pause = _FIRST_PAUSE_SECONDS
    busy: list[AwaitedTask] = []
    awaited = Awaited("a moment between steps", lambda: [*busy])
    with Wait(servers.identity.name, awaited.subject, seconds, awaited):
        while True:
            name = secrets.token_bytes(SESSION_ID_BYTES)
            found = _left_unfinished(servers) or _attempt(servers, name, mark)
            if isinstance(found, Cut):
                return found
            busy[:] = found.busy
            if time.monotonic() >= give_up_at:
                raise DeadlineExceededError(
                    f"no moment between steps was found in {seconds:g} s: {found.why}; raise "
                    "peer_seconds if steps take that long"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True)
class _Miss:
    """An attempt without a cut.

    Attributes:
        why: A clause for messages.
        busy: Who was in the midst of a step.
    """

    why: str
    busy: Sequence[AwaitedTask] = ()


def _left_unfinished(servers: ServerGroup) -> _Miss | None:
    """Finish steps that a worker has left half finished, or return which one others have to."""
    if servers.identity.role != ROLE_EVALUATOR:
        finish_all(servers)
        return None
    step = first_unfinished(servers)
    if step is None:
        return None
    return _Miss(
        f"step {step.step} of {step.group!r} is not finished on all servers, and an evaluator "
        "leaves that to the tasks that train; see that one of them goes on"
    )


def _attempt(servers: ServerGroup, cut: bytes, mark: Mark) -> Cut | _Miss:
    """Takes a cut; returns why it could not if so."""
    try:
        answers = _hold(servers, cut)
        clients = _progress(answers).values()
        busy = {one.label: one.begun for one in clients if _is_busy(one)}
        if not busy:
            servers.on_all(partial(mark, cut))
            return Cut(cut, _reports(answers, clients))
        why = _Miss(
            "in the midst of a step were " + ", ".join(sorted(busy)),
            [AwaitedTask(label, f"end of step {begun}") for label, begun in sorted(busy.items())],
        )
    except AbortedError as error:
        why = _Miss(error.message)
    except StratagemError:
        _release(servers, cut)
        raise
    _release(servers, cut)
    return why


def _release(servers: ServerGroup, cut: bytes) -> None:
    # Servers that cannot be told let go by themselves.
    with suppress(StratagemError):
        servers.on_all(lambda: release_steps(cut))


def _hold(servers: ServerGroup, cut: bytes) -> Collection[HoldStepsResponse]:
    """Holds new steps until those that have begun are over, for so long as it may."""
    give_up_at = time.monotonic() + _ATTEMPT_SECONDS
    begun: dict[bytes, int] = {}
    wait = 0.0
    while True:
        answers = servers.on_all(partial(hold_steps, cut, begun, wait)).values()
        found = _progress(answers)
        busy = any(map(_is_busy, found.values()))
        known = {client: each.begun for client, each in found.items()}
        # A step may have begun on one server before another held it.
        if (not busy and known == begun) or time.monotonic() >= give_up_at:
            return answers
        begun, wait = known, _LOOK_SECONDS if busy else 0.0


def _is_busy(client: ClientProgress) -> bool:
    return client.finished < client.begun


def _progress(answers: Iterable[HoldStepsResponse]) -> Mapping[bytes, ClientProgress]:
    """How far each client is according to the server that knows most."""
    found: dict[bytes, ClientProgress] = {}
    for each in (each for answer in answers for each in answer.clients):
        known = found.setdefault(each.client, ClientProgress(label=each.label))
        known.begun = max(known.begun, each.begun)
        if each.finished >= known.finished:
            known.finished, known.report = each.finished, each.report or known.report
    return found


def _reports(
    answers: Iterable[HoldStepsResponse], clients: Iterable[ClientProgress]
) -> dict[str, bytes]:
    """What each task reported last; of one that was started again, its later run."""
    left = [each for answer in answers for each in answer.left]
    left.sort(key=lambda each: each.finished)
    return {each.label: each.report for each in (*left, *clients) if each.report}


@contextmanager
def snapshot_of(store: RemoteStore) -> Iterator[None]:
    """Have all reads of a store be of one moment, until the context ends.

    Raises:
        FailedPreconditionError: They are already, or too many tasks read so.
        DeadlineExceededError: Clients were in the midst of a step all the time.
    """
    servers = store.servers
    if servers.snapshot:
        raise FailedPreconditionError(
            "this strategy reads from a snapshot already; leave it before you take the next one"
        )
    try:
        servers.snapshot = take_cut(servers, open_snapshot, store.peer_seconds).name
        yield
    finally:
        servers.snapshot = b""
        # Servers that cannot be told let go when the session ends.
        with suppress(StratagemError):
            servers.on_all(close_snapshot)
