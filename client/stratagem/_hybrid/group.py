"""The workers that all-reduce together: how they come together, and again when one is lost."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
from torch._C._distributed_c10d import TCPStore

from stratagem._cluster.tasks import Membership, id_in_cluster, worker_count
from stratagem._multi_worker.links import Links
from stratagem._multi_worker.meeting import WorkerPlace, require_trust
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.requests.coordination import form_group
from stratagem_proto.errors import FailedPreconditionError, StratagemError, UnavailableError
from stratagem_proto.v1.barrier_pb2 import BarrierResponse, GroupForming

# Who waits for a new generation has to wait for so long, besides for the step that is under way.
_LOOK_SECONDS = 0.5
# Those that connect have all just come, but their machines may be busy.
_CONNECT_SECONDS = 30.0
# In a reduction that takes longer somebody may be stopped, or cut off.
_SILENT_SECONDS = 5.0


class LostGroupError(UnavailableError):
    """A generation of the group cannot go on; what it was to reduce is reduced by the next one."""


class Member(NamedTuple):
    """What a worker says when it comes to a generation.

    Attributes:
        step: How many steps the dense parameters have taken that it has.
        worker: Its number.
        address: Where it lets the others meet, if it is the first of them.
        has_joined: Whether it was in a generation before.
        is_behind: Whether it has heard that all workers were lost since the servers' copy.
        gradients: How many it has come with, those of its processes before included; 0 if nobody
            knows.
    """

    step: int
    worker: int
    address: str
    has_joined: bool
    is_behind: bool
    gradients: int


class _GenerationLinks(Links):
    """The connections of one generation, which ends with the first failure."""

    def __init__(self, place: WorkerPlace, timeout: float, has_ended: Callable[[], bool]) -> None:
        self._has_ended, self._next_look = has_ended, _SILENT_SECONDS
        super().__init__(place, _CONNECT_SECONDS)
        for group in self._groups.values():
            group._set_default_timeout(timedelta(seconds=timeout))  # type: ignore[attr-defined]

    def _look(self, waited: float) -> None:
        """Also notice who is stopped, or cut off, even if it is this one: connections stay open."""
        super()._look(waited)
        if waited < 1.0:
            self._next_look = _SILENT_SECONDS
        elif waited >= self._next_look:
            self._next_look = waited + _SILENT_SECONDS
            if self._has_ended():
                raise RuntimeError("a worker is not heard of any more, or has gone on with others")

    def _failed(self, error: RuntimeError) -> StratagemError:
        return LostGroupError(str(error).splitlines()[0], task=self._place.name)

    def close(self) -> None:
        """End the connections, so that the others notice."""
        self._leave()
        for group in self._groups.values():
            with suppress(RuntimeError):
                group.abort()  # type: ignore[attr-defined]
        self._groups.clear()


class DenseGroup:
    """The workers that all-reduce together, generation after generation.

    Per generation: `form`, then `sums` any number of times; the first failure of these, or `leave`,
    ends it. A server decides who is in which (`Formations`); the first one by rank lets the others
    meet, at a port that its system chooses.

    Args:
        name: Of the group, on the servers.
        membership: Which task of the cluster this process is.
        store: The servers.
        patience: How many seconds a member is waited for that is there and does not come.

    Attributes:
        name: As given.
        worker: The number of this worker.
        num_workers: How many there are.
        generation: The number of the last one that this worker was in, from 1.
        is_in: Whether that goes on, as far as it knows.

    Raises:
        FailedPreconditionError: The workers are on several machines, and nobody has said that
            these speak without certificates.
    """

    def __init__(
        self, name: str, membership: Membership, store: RemoteStore, patience: float
    ) -> None:
        cluster, job = membership.cluster, membership.task_type
        self.worker = id_in_cluster(cluster, job, membership.task_id)
        self.num_workers = worker_count(cluster, job)
        self.name, self._task, self._store = name, membership.name, store
        self._patience = patience
        address = cluster.task_address(job, membership.task_id)
        self._host = address.rpartition(":")[0]
        if self.num_workers > 1:
            tasks = tuple(map(str, range(self.num_workers)))
            require_trust(WorkerPlace(tasks, self.worker, address))
        self._meeting: TCPStore | None = None
        self._links: _GenerationLinks | None = None
        self._members: tuple[str, ...] = ()
        self.generation = 0
        self.is_in = False
        self._next_look = 0.0

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is in this generation."""
        return self._links is None

    def form(
        self, step: int, has_joined: bool, is_behind: bool, gradients: int
    ) -> Sequence[Member]:
        """Come together with the others, who are told what a `Member` says; return all of them.

        Afterwards `spread` gives all the first one's values.

        Raises:
            FailedPreconditionError: The servers are of an earlier release.
            DeadlineExceededError: Workers are missing without which no generation can be formed.
            LostGroupError: One was lost meanwhile; try again.
        """
        self.leave()
        address = f"{self._host}:{self._port()}"
        own = Member(step, self.worker, address, has_joined, is_behind, gradients)
        forming = self._forming(note=json.dumps(own).encode(), patience=self._patience)
        request = form_group(self.name, forming, self.num_workers, self._store.peer_seconds)
        answer = self._store.ask_first(request)
        if not answer.generation:
            raise FailedPreconditionError(
                "the first server is of a release that forms no groups of workers, which a "
                "HybridOptimizer needs; bring the servers to this one"
            )
        found = [(Member(*json.loads(one.note)), one.task) for one in answer.members]
        # The first has the newest values.
        found.sort(key=lambda each: (-each[0].step, each[0].worker))
        self.generation = answer.generation
        self._members = tuple(task for _, task in found)
        self._next_look = time.monotonic() + _LOOK_SECONDS
        if len(found) > 1:
            place = WorkerPlace(
                self._members,
                self._members.index(self._task),
                found[0][0].address,
                self._members[0] == self._task,
                f"{self.name}/{self.generation}",
            )
            self._links = self._linked(place)
        self.is_in = True
        return [member for member, _ in found]

    def _port(self) -> int:
        """Return where this process lets others meet."""
        if self._meeting is None and self.num_workers > 1:
            self._meeting = TCPStore(
                self._host, 0, is_master=True, wait_for_workers=False, multi_tenant=True
            )
        return 0 if self._meeting is None else self._meeting.port

    def _linked(self, place: WorkerPlace) -> _GenerationLinks:
        """Connect with the others, unless one of them ends or gives up meanwhile."""
        linked: Future[_GenerationLinks] = Future()
        connect = partial(self._connect, place, linked)
        threading.Thread(target=connect, name="stratagem-connect", daemon=True).start()
        while True:
            try:
                return linked.result(_LOOK_SECONDS)
            except FutureTimeoutError:
                found = self._looked()
            if found.has_lost or found.is_awaited or self._is_past(found):
                # Whenever they come.
                linked.add_done_callback(_close)
                raise LostGroupError("a worker has ended while others connected")

    def _connect(self, place: WorkerPlace, linked: Future[_GenerationLinks]) -> None:
        try:
            links = _GenerationLinks(place, self._store.peer_seconds, self._has_ended)
        except Exception as error:
            linked.set_exception(_lost(error) if isinstance(error, StratagemError) else error)
        else:
            linked.set_result(links)

    def _is_past(self, found: BarrierResponse) -> bool:
        return found.generation != self.generation

    def _forming(self, note: bytes = b"", patience: float = 0.0) -> GroupForming:
        return GroupForming(
            generation=self.generation,
            members=self._members,
            note=note,
            patience_seconds=patience,
            only_looks=not note,
        )

    def _looked(self) -> BarrierResponse:
        """Ask what there is on the servers."""
        return self._store.ask_first(form_group(self.name, self._forming(), self.num_workers, 0.0))

    def _has_ended(self) -> bool:
        """Whether a member is lost, or the others have taken this one for lost."""
        found = self._looked()
        return found.has_lost or self._is_past(found)

    def exists(self) -> bool:
        """Whether there is a generation that others may be in."""
        return self.num_workers > 1 and self._looked().generation > 0

    def is_outdated(self) -> bool:
        """Whether the next generation is due, as far as this worker is the one to look.

        That is the first one. Who is alone looks before each step, since others may have taken it
        for lost.
        """
        if self.num_workers == 1 or self._members[0] != self._task:
            return False
        if self._links is not None and time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + _LOOK_SECONDS
        found = self._looked()
        return found.is_awaited or self._is_past(found)

    def sums(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum over the workers of each tensor, the same bits on every worker.

        Raises:
            LostGroupError: A worker is lost.
        """
        return self._carried_out(lambda links: links.sums(tensors, 0), tensors)

    def spread(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the first one's tensors, of the same shapes and dtypes; raise as `sums`."""
        return self._carried_out(lambda links: links.spread(tensors), tensors)

    def _carried_out(
        self, call: Callable[[Links], list[torch.Tensor]], tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        if self._links is None:
            return list(tensors)
        try:
            return call(self._links)
        except StratagemError as error:
            self.leave()
            raise _lost(error) from None
        except BaseException:
            # The others wait for what this worker does not take part in any more.
            self.leave()
            raise

    def leave(self) -> None:
        """Leave the generation; the others form the next one when they reduce."""
        links, self._links, self.is_in = self._links, None, False
        if links is not None:
            links.close()


def _close(linked: Future[_GenerationLinks]) -> None:
    if linked.exception() is None:
        linked.result().close()


def _lost(error: StratagemError) -> LostGroupError:
    """Return the error of a generation, which keeps none of its connections open."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__
    return LostGroupError(error.message, task=error.task if hasattr(error, "task") else "")
