"""The connections between workers: process groups of torch.

gloo carries what is in the memory of hosts, and what workers tell each other; NCCL
carries tensors on GPUs. The groups belong to this object alone, so that a program's
own `torch.distributed.init_process_group` is none of its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, TypeVar, cast
from weakref import finalize

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from stratagem._workers.meeting import Meeting
from stratagem._workers.place import WorkerPlace
from stratagem_proto.errors import (
    DeadlineExceededError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)

_Result = TypeVar("_Result")

_TURN = timedelta(seconds=0.5)

# What both of gloo and NCCL add; others are joined and added here.
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


class _ProcessGroup(Protocol):
    """What is used of torch's process groups, whatever carries them."""

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work: ...

    def allgather(
        self, found: list[list[torch.Tensor]], own: list[torch.Tensor]
    ) -> distributed.Work: ...

    def broadcast(self, tensor: torch.Tensor, root: int) -> distributed.Work: ...


class Links:
    """One process's connections with all other workers.

    Args:
        place: Who this process is.
        timeout: Longest time to wait for the others, in seconds.

    Raises:
        UnavailableError: They cannot be connected.
        DeadlineExceededError: Not all workers came in time.
    """

    def __init__(self, place: WorkerPlace, timeout: float) -> None:
        self._place = place
        self._timeout = timedelta(seconds=timeout)
        self._operations = 0
        self._failure: StratagemError | None = None
        self._meeting = Meeting(place, timeout)
        self._meeting.wait_for_all()
        # By the type of the devices whose tensors they carry.
        self._groups: dict[str, _ProcessGroup] = {}
        # Their threads have to end before the interpreter does.
        finalize(self, self._groups.clear)
        self._groups["cpu"] = self._carried_out(self._gloo)

    def sums(
        self, tensors: Sequence[torch.Tensor], pack_bytes: int
    ) -> list[torch.Tensor]:
        """Carry out `WorkerGroup.sums`."""
        found: dict[int, torch.Tensor] = {}
        for pack in _packs(tensors, pack_bytes):
            parts = [tensors[number] for number in pack]
            total = self._sum(_flatten_dense_tensors(parts))
            found |= zip(pack, _unflatten_dense_tensors(total, parts), strict=True)
        return [found[number] for number in range(len(tensors))]

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _SUMMABLE:
            total, *others = self.joined(tensor, [len(tensor)] * self._place.size)
            for other in others:
                total = total + other
            return total
        # What is flattened may still be the memory of the only tensor in it.
        total = tensor.detach().clone()
        self._await(total.device, lambda group: group.allreduce([total]))
        return total

    def joined(
        self, tensor: torch.Tensor, lengths: Sequence[int]
    ) -> list[torch.Tensor]:
        """Carry out `WorkerGroup.joined`."""
        return self._joined(tensor.detach(), lengths, tensor.device)

    def joined_on_host(
        self, tensor: torch.Tensor, lengths: Sequence[int]
    ) -> list[torch.Tensor]:
        """Like `joined`, for small tensors in the memory of the host."""
        return self._joined(tensor, lengths, torch.device("cpu"))

    def _joined(
        self, tensor: torch.Tensor, lengths: Sequence[int], device: torch.device
    ) -> list[torch.Tensor]:
        # As bytes any dtype can be sent, but all have to send equally many.
        width = tensor.shape[1:].numel() * tensor.element_size()
        own = _bytes_of(tensor)
        mine = torch.zeros(max(lengths) * width, dtype=torch.uint8, device=device)
        mine[: len(own)] = own
        found = [torch.empty_like(mine) for _ in lengths]
        self._await(device, lambda group: group.allgather([found], [mine]))
        return [
            _tensor_of(
                part[: length * width], tensor.dtype, (length, *tensor.shape[1:])
            )
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
        self,
        device: torch.device,
        start: Callable[[_ProcessGroup], distributed.Work],
    ) -> None:
        if device.type == "cpu":
            self._carried_out(lambda: _wait(start(self._groups["cpu"])))
        else:
            group = self._nccl_on(device)
            self._carried_out(lambda: start(group).wait())

    def _nccl_on(self, device: torch.device) -> _ProcessGroup:
        if device.type not in self._groups:
            self._groups[device.type] = self._carried_out(lambda: self._nccl(device))
        return self._groups[device.type]

    def _gloo(self) -> _ProcessGroup:
        store, place = PrefixStore("gloo", self._meeting.store), self._place
        group: object = distributed.ProcessGroupGloo(
            store, place.rank, place.size, self._timeout
        )
        return cast("_ProcessGroup", group)

    def _nccl(self, device: torch.device) -> _ProcessGroup:
        if not distributed.is_nccl_available():
            raise UnimplementedError(
                f"{self._place.name} has its replicas on {device}, but this torch has "
                "no NCCL; install one that has, or use the CPU",
                task=self._place.name,
            )
        store, place = PrefixStore("nccl", self._meeting.store), self._place
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        with torch.cuda.device(device):
            group: object = distributed.ProcessGroupNCCL(
                store, place.rank, place.size, options
            )
        return cast("_ProcessGroup", group)

    def _carried_out(self, operation: Callable[[], _Result]) -> _Result:
        """Do what takes all workers; once it has failed nothing works any more."""
        if self._failure is not None:
            raise self._failure
        self._operations += 1
        try:
            return operation()
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


def _wait(work: distributed.Work) -> None:
    # In turns, because nothing can be interrupted from the keyboard meanwhile.
    while not work.is_completed():
        with suppress(RuntimeError):
            work.wait(_TURN)
    work.wait()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensor_of(
    content: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor:
    return content.view(dtype).reshape(shape)


def _packs(tensors: Sequence[torch.Tensor], pack_bytes: int) -> list[list[int]]:
    """Return the numbers of those tensors that are sent together."""
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
