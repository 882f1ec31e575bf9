"""Checkpoints of all servers: finding one moment between steps, and writing what was there."""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stratagem._checkpoints.series import STEPS, Contents, Series, latest_base
from stratagem._core.waiting import Awaited, AwaitedTask, Wait
from stratagem._parameter_server.hosting.steps import finish_all, first_unfinished
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import (
    SavedPart,
    begin_save,
    close_snapshot,
    finish_save,
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
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.v1.checkpoint_pb2 import ClientProgress, HoldStepsResponse
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, WorkerReport
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.entries import TensorFile, WriteOptions
from stratagem_storage.checkpoint.folder import (
    LOCAL_PART,
    NewCheckpoint,
)
from stratagem_storage.checkpoint.index import Base, Index, Published
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.stores.places import AnyPlace, absolute_place, shared_place
from stratagem_storage.stores.store import Folder, size_of
from stratagem_storage.unclosed import start_last_thread

# Time that a server may take to answer how far clients are.
_HOLD_LOOK_SECONDS = 0.05
# Steps that take longer are not held up: the cut is tried again.
_ATTEMPT_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


Mark = Callable[[bytes, Collection[HoldStepsResponse]], object]
"""Has all servers mark their variables, by the name of a cut and by what they said before it."""


def marking(servers: ServerGroup, make: Callable[[bytes], Request[Any]]) -> Mark:
    """Return what sends all servers the request that is made of the name of a cut."""
    return lambda cut, _: servers.on_all(partial(make, cut))


@dataclass(frozen=True)
class Cut:
    """A moment that all servers have marked.

    Attributes:
        name: The servers know it by this.
        reports: What each client has reported after its last step before it, by task.
    """

    name: bytes
    reports: Mapping[str, bytes]


def take_cut(servers: ServerGroup, mark: Mark, seconds: float, is_step: bool = False) -> Cut:
    """Have all servers mark their variables between steps of all clients.

    Steps that no server has a part of yet wait until those are over that some server has a part of,
    at most for a second; then they are let go, and it is tried again. `mark` ends the hold. What it
    sends is a step of the client with `is_step`, which goes on while those of others are held.

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
            found = _left_unfinished(servers) or _attempt(servers, name, mark, is_step)
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


def _attempt(servers: ServerGroup, cut: bytes, mark: Mark, is_step: bool) -> Cut | _Miss:
    """Takes a cut; returns why it could not if so."""
    if is_step:
        with servers.steps.step_scope():
            return _marked(servers, cut, mark, {servers.client: servers.steps.current})
    return _marked(servers, cut, mark, {})


def _marked(servers: ServerGroup, cut: bytes, mark: Mark, own: Mapping[bytes, int]) -> Cut | _Miss:
    try:
        answers = _hold(servers, cut, own)
        clients = _progress(answers).values()
        busy = {one.label: one.begun for one in clients if _is_busy(one)}
        if not busy:
            mark(cut, answers)
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


def _hold(
    servers: ServerGroup, cut: bytes, own: Mapping[bytes, int]
) -> Collection[HoldStepsResponse]:
    """Holds new steps until those that have begun are over, for so long as it may."""
    give_up_at = time.monotonic() + _ATTEMPT_SECONDS
    begun: dict[bytes, int] = {}
    wait = 0.0
    while True:
        answers = servers.on_all(partial(hold_steps, cut, {**begun, **own}, wait)).values()
        clients = _progress(answers)
        # All servers hold since before they answered, so what nobody has begun by now, nobody does.
        if not any(map(_is_busy, clients.values())) or time.monotonic() >= give_up_at:
            return answers
        # A step may have begun on one server before another held it: that one has to let it go on.
        begun = {client: each.begun for client, each in clients.items()}
        wait = _HOLD_LOOK_SECONDS


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


def _ended_within(answers: Collection[HoldStepsResponse]) -> dict[str, int]:
    """Return the tasks that ended within a step and have not repeated it, and where they were.

    Variables have a part of that step, or all of it, and no report counts it yet.
    """
    left = [each for answer in answers for each in answer.left]
    clients = [each for answer in answers for each in answer.clients]
    furthest = dict[str, int]()
    for each in (*left, *clients):
        position = _position(each.report)
        furthest[each.label] = max(position, furthest.get(each.label, position))
    known = ((each.label, _position(each.report)) for each in left if _is_busy(each))
    return {label: at for label, at in known if 0 <= at == furthest[label]}


def _position(report: bytes) -> int:
    """Return how many steps a task has counted; -1 if it counts none."""
    states = WorkerReport.FromString(report).states
    return int(json.loads(states[-1].content).get(STEPS, -1)) if states else -1


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
        mark = marking(servers, open_snapshot)
        servers.snapshot = take_cut(servers, mark, store.peer_seconds).name
        yield
    finally:
        servers.snapshot = b""
        # Servers that cannot be told let go when the session ends.
        with suppress(StratagemError):
            servers.on_all(close_snapshot)


_LOG = logging.getLogger("stratagem")

# Checkpoints whose moment has passed, and which are not written: servers, too, may have to keep a
# copy of all variables for each.
_MOST_UNDER_WAY = 4

# A server answers at the latest after so long that it still writes: until all have answered, nobody
# knows which ones do.
_LOOK_SECONDS = 2.0

# A checkpoint waits for so long for a task that ended within a step to come back and repeat it, if
# steps get as much time twice.
_RETURN_SECONDS = 30.0


class ClusterSaver:
    """Saves checkpoints one after the other, in the order of the calls.

    Steps of workers get so many seconds to be over.
    """

    def __init__(self, servers: ServerGroup, seconds: float) -> None:
        self._servers = servers
        self._seconds = seconds
        self._under_way: deque[threading.Thread] = deque()
        # Since when tasks are missed that ended within a step, by task and position; minus infinity
        # once that was told.
        self._missed: dict[tuple[str, int], float] = {}

    def save(self, root: AnyPlace, contents: Contents, series: Series) -> Future[None]:
        """Save what is there at one moment during the call; return what is done when it is written.

        Waits where several are not written yet, and for all of them if the latest is needed.

        Raises:
            NotFoundError: There is no such folder, or a server does not see it.
            InvalidArgumentError: `root` is a file.
            DeadlineExceededError: Workers were in the midst of a step all the time.
        """
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._under_way.popleft().join()
        key, base = CHECKPOINT_KEY_FILE.from_environment(), None
        if series.incremental:
            self.wait()
            base = latest_base(absolute_place(root), key)
        new = NewCheckpoint(shared_place(root))
        try:
            beside = str(base.folder) if base else ""
            begin = partial(begin_save, folder=str(new.folder.path), base=beside)
            cut = take_cut(self._servers, partial(self._mark, begin), self._seconds)
        except BaseException:
            new.abandon()
            raise
        written: Future[None] = Future()
        named = base.as_base if base else None
        now = time.time_ns() // 1_000_000
        published = Published(now, cut.name, now)
        work = _Work(self._servers, new, cut, contents, series.keep, key, named, published)
        earlier = self._under_way[-1] if self._under_way else None
        thread = threading.Thread(target=work.run, args=(earlier, written))
        start_last_thread(thread)
        self._under_way.append(thread)
        return written

    def _mark(
        self,
        begin: Callable[[bytes], Request[Any]],
        cut: bytes,
        answers: Collection[HoldStepsResponse],
    ) -> None:
        """Have all servers begin to save, unless a task is to repeat a step first.

        Raises:
            AbortedError: One is.
        """
        now, longest = time.monotonic(), min(_RETURN_SECONDS, self._seconds / 2)
        for label, step in _ended_within(answers).items():
            # This process repeats nothing before it has saved.
            patience = 0.0 if label == self._servers.identity.name else longest
            since = self._missed.setdefault((label, step), now)
            if now < since + patience:
                raise AbortedError(f"{label} ended within step {step}, and is to repeat it")
            if since > -math.inf:
                self._missed[label, step] = -math.inf
                _LOG.warning(
                    "%s ended within step %d and has not repeated it yet: checkpoints have what it "
                    "has changed in that step, and a run that begins with one takes all of it "
                    "again, or leaves out the rest. Save behind a step that strategy.steps() "
                    "counts, not before it",
                    label,
                    step,
                )
        self._servers.on_all(partial(begin, cut))

    def wait(self) -> None:
        """Wait for what is being written."""
        if self._under_way:
            self._under_way[-1].join()


@dataclass(frozen=True)
class _Work:
    """What is left to do of one checkpoint when its moment has passed."""

    servers: ServerGroup
    new: NewCheckpoint
    cut: Cut
    contents: Contents
    keep: int
    key: str
    base: Base | None
    published: Published

    def run(self, earlier: threading.Thread | None, written: Future[None]) -> None:
        if earlier is not None:
            earlier.join()
        try:
            self._finish()
        except BaseException as error:
            self.new.abandon()
            written.set_exception(error)
        else:
            written.set_result(None)

    def _finish(self) -> None:
        local = self._write_local()
        saved = self._wait_for_servers()
        parts = [*(each.part for each in saved.values()), *local]
        for server, each in saved.items():
            _require_visible(self.new.folder, each.part, f"/job:ps/task:{server}")
        states = {each.part.name: json.loads(each.state) for each in saved.values()}
        applied = [state["groups"] for state in states.values()]
        workers = {
            "count": self.contents.num_workers,
            "states": _states_of(self.cut.reports, applied),
        }
        index = Index.of_parts(parts, states, self.contents.extra, workers, self.base)
        told = replace(index, published=self.published, ended=self.contents.ended)
        self.new.commit(told, self.keep, self.key)

    def _write_local(self) -> Sequence[TensorFile]:
        values = self.contents.local
        if not values:
            return ()
        specs = [VariableSpec(name=name, tensor=spec_of(value)) for name, value in values.items()]
        options = WriteOptions(has_digests=bool(self.key))
        contents = [Content(spec) for spec in specs]
        folder, tensors = self.new.folder, values.values()
        return [write_part(folder, LOCAL_PART, contents, tensors, options=options)]

    def _wait_for_servers(self) -> dict[int, SavedPart]:
        saved: dict[int, SavedPart] = {}
        with self._wait_for_parts(saved):
            while missing := set(self.servers.called) - saved.keys():
                answers = self.servers.call_all(
                    {server: finish_save(self.cut.name, _LOOK_SECONDS) for server in missing}
                )
                saved |= {server: one for server, one in answers.items() if one is not None}
        return dict(sorted(saved.items()))

    def _wait_for_parts(self, saved: Mapping[int, SavedPart]) -> Wait:
        """Return the wait for the parts that are not among those that are written."""

        def missing() -> list[AwaitedTask]:
            servers = [server for server in self.servers.called if server not in saved]
            return [AwaitedTask(f"/job:ps/task:{server}", "part") for server in servers]

        awaited = Awaited(f"checkpoint {str(self.new.folder.path)!r}", missing, reason="part")
        return Wait(self.servers.identity.name, awaited.subject, awaited=awaited)


def _require_visible(folder: Folder, part: TensorFile, server: str) -> None:
    path = folder.path / part.name
    try:
        with folder.file(part.name) as file:
            is_visible = size_of(file) == part.file.nbytes
    except FileNotFoundError:
        is_visible = False
    if not is_visible:
        raise FailedPreconditionError(
            f"{server} has written {str(path)!r}, but the chief does not see it there; "
            "save to a folder that all servers and the chief share",
            task=server,
        )


def _states_of(
    reports: Mapping[str, bytes], applied: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """Return by task the states that fit to the synchronous steps that each server has applied."""
    found = {}
    for task, report in reports.items():
        for state in WorkerReport.FromString(report).states:
            if all(_is_applied(step, applied) for step in state.contributed.items()):
                found[task] = json.loads(state.content)
    return found


def _is_applied(step: tuple[str, int], applied: Sequence[Mapping[str, int]]) -> bool:
    group, number = step
    return all(number <= groups.get(group, 0) for groups in applied)
