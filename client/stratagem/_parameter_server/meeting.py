"""What all workers of a cluster bring together when they meet: tensors, and means of buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import safetensors.torch
import torch

from stratagem._cluster.tasks import Membership
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem_proto.errors import FailedPreconditionError

_KEY = "tensor"
_SMALLEST = 1 << 10  # bytes


class WorkerRows:
    """A vector of each worker, which all read once they have met.

    Each worker writes its own to its row of a variable. There are two such variables by turns:
    until all have met the next time, nobody writes to what others may still read. A worker that is
    started again does not know whose turn it is, so those who go on with it have one variable, and
    meet once more when they have read.

    Args:
        membership: Whose rows there are.
        name: Of the variables, before the number of the turn.
        turns: How many variables there are.
    """

    def __init__(self, membership: Membership, name: str, turns: int = 2) -> None:
        self._membership, self._name, self._turns = membership, name, turns
        self._turn = 0
        self._variables: dict[tuple[int, torch.dtype, int], Any] = {}

    def offer(self, vector: torch.Tensor) -> None:
        """Write this worker's vector; in the strategy's scope, before all meet."""
        row = torch.tensor([self._membership.number])
        self._variable(len(vector), vector.dtype).scatter_update(IndexedSlices(vector[None], row))

    def take(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the vectors of all workers, (workers, length), after all have met."""
        found: torch.Tensor = self._variable(length, dtype).read_value()
        self._turn += 1
        return found

    def skip(self) -> None:
        """Pass a turn in which no worker has anything."""
        self._turn += 1

    def _variable(self, length: int, dtype: torch.dtype) -> Any:
        key = length, dtype, self._turn % self._turns
        if key not in self._variables:
            empty = torch.zeros(self._membership.num_workers, length, dtype=dtype)
            self._variables[key] = Variable(empty, trainable=False, name=f"{self._name}_{key[2]}")
        return self._variables[key]


class Gathering:
    """Brings a tensor of each worker to all of them.

    Tensors travel as bytes, of which the workers first tell each other how many. Rows have room for
    a power of two of them, so that there are few variables whatever the sizes.

    Args:
        membership: Whose tensors there are.
        scope: Opens the strategy's scope.
    """

    def __init__(
        self, membership: Membership, scope: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._membership, self._scope = membership, scope
        self._sizes = WorkerRows(membership, "stratagem/sizes")
        self._contents = WorkerRows(membership, "stratagem/contents")
        self._number = 0

    def gather(self, tensor: torch.Tensor, meet: Callable[[], None]) -> list[torch.Tensor]:
        """Return the tensors of all workers, in the order of the workers, on the CPU.

        Args:
            tensor: This worker's, of any shape and dtype.
            meet: Waits for all workers.

        Raises:
            FailedPreconditionError: Workers have not gathered equally often.
            DeadlineExceededError: Some did not come.
        """
        self._number += 1
        packed = safetensors.torch.save({_KEY: tensor.detach().cpu().contiguous()})
        told = self._exchanged(self._sizes, torch.tensor([self._number, len(packed)]), meet)
        self._require_together(told[:, 0].tolist())
        lengths = told[:, 1].tolist()
        own = torch.zeros(_room_for(max(lengths)), dtype=torch.uint8)
        own[: len(packed)] = torch.from_numpy(np.frombuffer(packed, np.uint8).copy())
        rows = self._exchanged(self._contents, own, meet)
        return [_unpacked(row[:length]) for row, length in zip(rows, lengths, strict=True)]

    def _exchanged(
        self, rows: WorkerRows, own: torch.Tensor, meet: Callable[[], None]
    ) -> torch.Tensor:
        with self._scope():
            rows.offer(own)
        meet()
        with self._scope():
            return rows.take(len(own), own.dtype)

    def _require_together(self, numbers: Sequence[int]) -> None:
        for worker, number in enumerate(numbers):
            if number != self._number:
                raise FailedPreconditionError(
                    f"{self._membership.name} gathers for the {self._number}. time, and worker "
                    f"{worker} of {len(numbers)} has done so {number} times; a program that was "
                    "started again cannot know what others have gathered before. Start all workers "
                    "again, from a checkpoint",
                    task=self._membership.name,
                )


def _room_for(length: int) -> int:
    return max(_SMALLEST, 1 << (length - 1).bit_length())


def _unpacked(row: torch.Tensor) -> torch.Tensor:
    return safetensors.torch.load(row.numpy().tobytes())[_KEY]


Named = Iterable[tuple[str, torch.Tensor]]


class BufferMeans:
    """Gives the floating buffers of all workers their mean when they meet."""

    def __init__(self, membership: Membership, buffers: Named) -> None:
        self._buffers = buffers
        self._rows = WorkerRows(membership, "stratagem/buffers", turns=1)

    def offer(self) -> None:
        """Write this worker's buffers; in the strategy's scope, before all meet."""
        own = self._own()
        if own:
            self._rows.offer(torch.cat([each.reshape(-1).cpu().double() for each in own]))

    def accept(self) -> None:
        """Replace this worker's buffers by the mean; after all have met."""
        own = self._own()
        if not own:
            self._rows.skip()
            return
        sizes = [each.numel() for each in own]
        mean = self._rows.take(sum(sizes), torch.double).mean(0)
        for each, part in zip(own, mean.split(sizes), strict=True):
            each.copy_(part.reshape(each.shape))

    def _own(self) -> list[torch.Tensor]:
        return [each.detach() for _, each in self._buffers if each.is_floating_point()]
