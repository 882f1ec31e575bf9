"""The mean of the buffers of all workers' modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stratagem._cluster.membership import Membership
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.variables.variable import Variable

Named = Iterable[tuple[str, torch.Tensor]]


class BufferMeans:
    """Gives the floating buffers of all workers their mean when they meet.

    Each worker writes its own to its row of a variable, and takes the mean of all rows once
    everybody has come. There are two such variables by turns: until all have come the next time,
    nobody writes to what others may still read.

    Args:
        membership: Which of the workers this one is.
        buffers: The buffers of its modules, by name.
    """

    def __init__(self, membership: Membership, buffers: Named) -> None:
        self._membership = membership
        self._buffers = buffers
        self._turn = 0
        self._rows: dict[tuple[int, int], Any] = {}

    def offer(self) -> None:
        """Write this worker's buffers; in the strategy's scope, before all meet."""
        own = self._own()
        if own:
            flat = torch.cat([each.reshape(-1).cpu().double() for each in own])
            row = torch.tensor([self._membership.number])
            self._variable(len(flat)).scatter_update(IndexedSlices(flat[None], row))

    def accept(self) -> None:
        """Replace this worker's buffers by the mean; after all have met."""
        own = self._own()
        if own:
            sizes = [each.numel() for each in own]
            mean = self._variable(sum(sizes)).read_value().mean(0)
            for each, part in zip(own, mean.split(sizes), strict=True):
                each.copy_(part.reshape(each.shape))
        self._turn += 1

    def _own(self) -> list[torch.Tensor]:
        return [each.detach() for _, each in self._buffers if each.is_floating_point()]

    def _variable(self, length: int) -> Any:
        key = length, self._turn % 2
        if key not in self._rows:
            empty = torch.zeros(self._membership.num_workers, length).double()
            name = f"stratagem/buffers_{key[1]}"
            self._rows[key] = Variable(empty, trainable=False, name=name)
        return self._rows[key]
