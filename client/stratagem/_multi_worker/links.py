"""The connections between workers, and the tensors that they carry.

Process groups of torch carry them: gloo those in the memory of hosts, and what workers tell each
other; NCCL those on GPUs. The groups are independent of the program's own
`torch.distributed.init_process_group`.
"""

from __future__ import annotations

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
from stratagem._multi_worker.lifelines import Lifelines, Messages
from stratagem._multi_worker.meeting import Meeting
from stratagem._multi_worker.place import WorkerPlace
from stratagem._multi_worker.presence import Presence
from stratagem_proto.errors import (
    DeadlineExceededError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)

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


class ProcessGroup(Messages, Protocol):
    """The methods of torch's process groups that are used."""

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work:
        """Add up tensors in place."""

    def allgather(
        self, found: list[list[torch.Tensor]], own: list[torch.Tensor]
    ) -> distributed.Work:
        """Copy each worker's tensor to its place in `found`."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> distributed.Work:
        """Overwrite a tensor by that of the worker `root`."""


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


Told: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Returns a context in which people see that this worker waits for others, for a turn already."""


Look: TypeAlias = Callable[[float], None]
"""Raises RuntimeError if what this worker has waited for, so many seconds, cannot happen."""


def wait(work: distributed.Work, device: torch.device, told: Told, look: Look) -> None:
    """Wait for an operation; on a GPU, only until it is queued there."""
    began = time.monotonic()
    if device.type == "cpu" and not _ends_soon(work):
        with told():
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
        self._lifelines = self._carried_out(self._new_lifelines)
        # This comes before what is above.
        finalize(self, self._lifelines.leave)

    def _new_lifelines(self) -> Lifelines:
        others = [rank for rank in range(self._place.size) if rank != self._place.rank]
        return Lifelines(self._group_for(torch.device("cpu")), others)

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
            wait(work, device, self._told, self._look)
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

    def _told(self) -> AbstractContextManager[None]:
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
