"""Checkpoints of all servers, as the chief has them written."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stratagem._core.waiting import Awaited, AwaitedTask, Wait
from stratagem._parameter_server.checkpoints.bases import latest_base
from stratagem._parameter_server.checkpoints.cut import Cut, take_cut
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import SavedPart, begin_save, finish_save
from stratagem_proto.checkpoint.entries import TensorFile, WriteOptions
from stratagem_proto.checkpoint.folder import LOCAL_PART, NewCheckpoint
from stratagem_proto.checkpoint.index import Base, Index
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.stores.places import AnyPlace, absolute_place, shared_place
from stratagem_proto.stores.store import Folder, size_of
from stratagem_proto.unclosed import start_last_thread
from stratagem_proto.v1.session_pb2 import WorkerReport
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of

# Checkpoints whose moment has passed, and which are not written: servers, too, may have to keep a
# copy of all variables for each.
_MOST_UNDER_WAY = 4

# A server answers at the latest after so long that it still writes: until all have answered, nobody
# knows which ones do.
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Contents:
    """What the chief adds to what the servers hold.

    Attributes:
        local: Tensors of its own, by name, which nobody changes from now on.
        extra: What JSON can express.
        num_workers: How many workers there are.
    """

    local: Mapping[str, torch.Tensor]
    extra: Mapping[str, Any]
    num_workers: int

    def __post_init__(self) -> None:
        try:
            json.dumps(dict(self.extra))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"extra must be what JSON can express: {error}") from error


@dataclass(frozen=True)
class Series:
    """The checkpoints that follow one another in a folder.

    Attributes:
        keep: How many there are to be.
        incremental: Whether the next one has only the rows that differ from the latest one.
    """

    keep: int
    incremental: bool

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InvalidArgumentError(f"keep is {self.keep}; keep at least 1 checkpoint")


class ClusterSaver:
    """Saves checkpoints one after the other, in the order of the calls.

    Steps of workers get so many seconds to be over.
    """

    def __init__(self, servers: ServerGroup, seconds: float) -> None:
        self._servers = servers
        self._seconds = seconds
        self._under_way: deque[threading.Thread] = deque()

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
            cut = take_cut(self._servers, begin, self._seconds)
        except BaseException:
            new.abandon()
            raise
        written: Future[None] = Future()
        named = base.as_base if base else None
        work = _Work(self._servers, new, cut, contents, series.keep, key, named)
        earlier = self._under_way[-1] if self._under_way else None
        thread = threading.Thread(target=work.run, args=(earlier, written))
        start_last_thread(thread)
        self._under_way.append(thread)
        return written

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
        self.new.commit(index, self.keep, self.key)

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
        with self._told(saved):
            while missing := set(self.servers.called) - saved.keys():
                answers = self.servers.together(
                    {server: finish_save(self.cut.name, _LOOK_SECONDS) for server in missing}
                )
                saved |= {server: one for server, one in answers.items() if one is not None}
        return dict(sorted(saved.items()))

    def _told(self, saved: Mapping[int, SavedPart]) -> Wait:
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
