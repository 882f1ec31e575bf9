"""The connections of a worker with the others, and what ends them."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast
from weakref import finalize

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, Store
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from stratagem._core.waiting import Wait
from stratagem._multi_worker.meeting import Meeting, Presence, WorkerPlace
from stratagem_proto.errors import (
    DeadlineExceededError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)

_FIRST_LOOK_SECONDS = 0.5

# Collective operations have no tags.
_FAREWELL, _LOOK = 1, 2
_AT_ONCE = timedelta(seconds=1)


class ProcessGroup(Protocol):
    """The methods of torch's process groups that are used."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> distributed.Work:
        """Send a tensor; raises RuntimeError if the connection is closed."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> distributed.Work:
        """Receive a tensor; raises RuntimeError if the connection is closed."""

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work:
        """Add up tensors in place."""

    def allgather(
        self, found: list[list[torch.Tensor]], own: list[torch.Tensor]
    ) -> distributed.Work:
        """Copy each worker's tensor to its place in `found`."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> distributed.Work:
        """Overwrite a tensor by that of the worker `root`."""


class Lifelines:
    """The connections of a worker, by which those that leave in order say so.

    A worker that has done its part may end while others are still in the same operation, which it
    does not disturb.

    Attributes:
        last_operation: The number of the last operation that this worker has done its part of.

    Raises:
        RuntimeError: A worker has ended.
    """

    def __init__(self, group: ProcessGroup, others: Sequence[int]) -> None:
        """Begin to listen for farewells.

        Args:
            group: The connections.
            others: The ranks of the other workers.
        """
        self._group = group
        self._farewells = {rank: _Farewell(group, rank) for rank in others}
        self.last_operation = 0
        self._next_look = _FIRST_LOOK_SECONDS

    def look(self, operation: int, waited: float) -> None:
        """Look, from time to time, whether any worker left before it had done an operation.

        Args:
            operation: Its number.
            waited: The seconds that it has taken so far.

        Raises:
            RuntimeError: One did, and gloo's words for it.
        """
        if waited < self._next_look:
            return
        # Each look leaves a few bytes behind in gloo. In the life of a group there are only a few,
        # since no wait of a usual length comes to the next one.
        self._next_look = 2 * waited
        for rank, farewell in self._farewells.items():
            try:
                self._group.recv([torch.empty(1)], rank, _LOOK)
            except RuntimeError:
                if farewell.last_operation() < operation:
                    raise

    def keep(self) -> None:
        """Have the connections last as long as the process, since a thread may wait in them.

        Whoever removed the group would wait for that thread, at the latest when the program ends.
        What listens for farewells lasts as long: gloo looks without a pause at one that arrives and
        that nobody takes, which costs a core.
        """
        for kept in (self._group, *self._farewells.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def leave(self) -> None:
        """Tell the others which operation was the last."""
        for rank in self._farewells:
            with suppress(RuntimeError):
                self._group.send([torch.tensor([self.last_operation])], rank, _FAREWELL)
        # Both keep the connections open.
        self._farewells.clear()
        del self._group


class _Farewell:
    """What a worker says when it leaves."""

    def __init__(self, group: ProcessGroup, rank: int) -> None:
        self._number = torch.tensor([-1])
        # It can only arrive if this worker was ready for it before.
        self._work = group.recv([self._number], rank, _FAREWELL)

    def last_operation(self) -> int:
        """Return the last operation of a worker whose connection is closed; -1 if it was lost."""
        if not self._work.is_completed():
            with suppress(RuntimeError):
                self._work.wait(_AT_ONCE)
        return int(self._number)


_TURN = timedelta(seconds=0.5)
_Result = TypeVar("_Result")

# The dtypes that both gloo and NCCL add. Others are joined and added here.
_SUMMABLE = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
}


def gloo(store: Store, place: WorkerPlace, timeout: timedelta) -> ProcessGroup:
    """Connect with all workers, for tensors in the memory of hosts.

    They find each other in the store, under keys of this group alone. Raises RuntimeError if a
    worker ended, or did not come in time.
    """
    group: object = distributed.ProcessGroupGloo(store, place.rank, place.size, timeout)
    return cast("ProcessGroup", group)


def nccl(
    store: Store, place: WorkerPlace, timeout: timedelta, device: torch.device
) -> ProcessGroup:
    """Prepare for tensors on GPUs; the first operation connects the workers."""
    if not distributed.is_nccl_available():
        raise UnimplementedError(
            f"{place.name} has its replicas on {device}, but this torch has no NCCL; "
            "install one that has, or use the CPU",
            task=place.name,
        )
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with torch.cuda.device(device):
        group: object = distributed.ProcessGroupNCCL(store, place.rank, place.size, options)
    return cast("ProcessGroup", group)


VisibleWait: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context in which people see that this worker waits for others, for a turn already."""


Look: TypeAlias = Callable[[float], None]
"""Raises RuntimeError if what this worker has waited for, so many seconds, cannot happen."""


def wait(
    work: distributed.Work, device: torch.device, visible_wait: VisibleWait, look: Look
) -> None:
    """Wait for an operation; on a GPU, only until it is queued there."""
    began = time.monotonic()
    if device.type == "cpu" and not _ends_soon(work):
        with visible_wait():
            while not _ends_soon(work):
                look(time.monotonic() - began)
    work.wait()


def _ends_soon(work: distributed.Work) -> bool:
    """Wait for a turn; return whether an operation has ended, perhaps by an error."""
    # The wait is short and repeated, since the keyboard cannot interrupt it.
    if not work.is_completed():
        with suppress(RuntimeError):
            work.wait(_TURN)
    return work.is_completed()


class Links:
    """The connections of one process with all other workers.

    Raises:
        UnavailableError: The workers cannot be connected.
        DeadlineExceededError: Not all workers came in time.
    """

    def __init__(self, place: WorkerPlace, timeout: float) -> None:
        self._place = place
        self._timeout = timedelta(seconds=timeout)
        self._operations = 0
        self._failure: StratagemError | None = None
        self._meeting = Meeting(place, timeout)
        self._meeting.wait_for_all()
        self._presence = Presence(place, self._meeting.store, timeout)
        # The keys are the types of the devices whose tensors the groups carry.
        self._groups: dict[str, ProcessGroup] = {}
        # The groups' threads have to end before the interpreter does.
        finalize(self, self._groups.clear)
        others = [rank for rank in range(place.size) if rank != place.rank]
        self._lifelines = self._carried_out(
            lambda: Lifelines(self._group_for(torch.device("cpu")), others)
        )
        # This comes before what is above.
        self._leave = finalize(self, self._lifelines.leave)

    def sums(self, tensors: Sequence[torch.Tensor], pack_bytes: int) -> list[torch.Tensor]:
        """Carry out `WorkerGroup.sums`."""
        found: dict[int, torch.Tensor] = {}
        for pack in _packs(tensors, pack_bytes):
            parts = [tensors[number] for number in pack]
            # Of a single tensor, `flat` may be the tensor's own memory.
            flat = _flatten_dense_tensors([part.detach() for part in parts])
            total = self._sum(flat if len(parts) > 1 else flat.clone())
            found |= zip(pack, _unflatten_dense_tensors(total, parts), strict=True)
        return [found[number] for number in range(len(tensors))]

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over workers, in place where that is possible."""
        if tensor.dtype not in _SUMMABLE:
            total, *others = self.joined(tensor, [len(tensor)] * self._place.size)
            for other in others:
                total = total + other
            return total
        self._await(tensor.device, lambda group: group.allreduce([tensor]))
        return tensor

    def joined(self, tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Carry out `WorkerGroup.joined`."""
        return self._joined(tensor.detach(), lengths, tensor.device)

    def joined_on_host(self, tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Like `joined`, for small tensors in the memory of the host."""
        return self._joined(tensor, lengths, torch.device("cpu"))

    def _joined(
        self, tensor: torch.Tensor, lengths: Sequence[int], device: torch.device
    ) -> list[torch.Tensor]:
        # Any dtype can be sent as bytes, but all workers send equally many.
        width = tensor.shape[1:].numel() * tensor.element_size()
        own = _bytes_of(tensor)
        mine = torch.zeros(max(lengths) * width, dtype=torch.uint8, device=device)
        mine[: len(own)] = own
        found = [torch.empty_like(mine) for _ in lengths]
        self._await(device, lambda group: group.allgather([found], [mine]))
        return [
            _tensor_of(part[: length * width], tensor.dtype, (length, *tensor.shape[1:]))
            for part, length in zip(found, lengths, strict=True)
        ]

    def spread(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Carry out `WorkerGroup.spread`."""
        if not tensors:
            return []
        device = tensors[0].device
        parts = [_bytes_of(tensor.detach().to(device)) for tensor in tensors]
        packed = torch.cat(parts)
        self._await(device, lambda group: group.broadcast(packed, 0))
        received = packed.split([len(part) for part in parts])
        return [
            _tensor_of(part.clone(), tensor.dtype, tensor.shape).to(tensor.device)
            for part, tensor in zip(received, tensors, strict=True)
        ]

    def _await(
        self, device: torch.device, start: Callable[[ProcessGroup], distributed.Work]
    ) -> None:
        group = self._group_for(device)
        self._carried_out(lambda: self._wait(group, start, device))
        self._lifelines.last_operation = self._operations

    def _wait(
        self,
        group: ProcessGroup,
        start: Callable[[ProcessGroup], distributed.Work],
        device: torch.device,
    ) -> None:
        work: distributed.Work | None = None
        try:
            work = start(group)
            wait(work, device, self._visible_wait, self._look)
        except BaseException as error:
            # An interrupt may come when the operation has just begun, and a thread of the group
            # then wait in it until its time is over.
            may_go_on = (
                not isinstance(error, Exception) if work is None else not work.is_completed()
            )
            if device.type == "cpu" and may_go_on:
                self._lifelines.keep()
            raise

    def _look(self, waited: float) -> None:
        self._lifelines.look(self._operations, waited)

    def _visible_wait(self) -> AbstractContextManager[None]:
        return self._presence.waiting(self._operations, _TURN.total_seconds())

    def _group_for(self, device: torch.device) -> ProcessGroup:
        """Return the process group that carries tensors on a device."""
        if device.type not in self._groups:
            connect = gloo if device.type == "cpu" else partial(nccl, device=device)
            store = PrefixStore(device.type, self._meeting.store)
            whom = f"the other workers to connect, at {self._place.meeting_point}"
            with Wait(self._place.name, whom, self._timeout.total_seconds()):
                self._groups[device.type] = self._carried_out(
                    lambda: connect(store, self._place, self._timeout)
                )
        return self._groups[device.type]

    def _carried_out(self, operation: Callable[[], _Result]) -> _Result:
        """Carry out an operation; once one has failed, all later ones fail too."""
        if self._failure is not None:
            raise self._failure
        self._operations += 1
        try:
            return operation()
        except StratagemError:
            raise
        except RuntimeError as error:
            self._failure = self._failed(error)
            raise self._failure from error

    def _failed(self, error: RuntimeError) -> StratagemError:
        missing = self._meeting.missing_after_failure(self._operations)
        reason = str(error).splitlines()[0]
        message = (
            f"{self._place.name} could not finish an operation with the other workers, "
            f"at {self._place.meeting_point}; missing: {missing} ({reason}). Look at "
            "the output of the missing, and start all workers anew"
        )
        late = "timed out" in reason.lower() or "timeout" in reason.lower()
        kind = DeadlineExceededError if late else UnavailableError
        return kind(message, task=self._place.name)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensor_of(content: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return content.view(dtype).reshape(shape)


def _packs(tensors: Sequence[torch.Tensor], pack_bytes: int) -> list[list[int]]:
    """Return lists of the numbers of tensors that are sent together."""
    packs: list[list[int]] = []
    latest: dict[object, list[int]] = {}
    sizes: Counter[object] = Counter()
    for number, tensor in enumerate(tensors):
        kind = tensor.dtype, tensor.device
        sizes[kind] += tensor.nbytes
        if kind not in latest or (pack_bytes and sizes[kind] > pack_bytes):
            latest[kind], sizes[kind] = [], tensor.nbytes
            packs.append(latest[kind])
        latest[kind].append(number)
    return packs
