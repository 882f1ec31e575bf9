"""Dividing the variables that programs create into shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch

from stratagem._core.tensors import TensorStandIn
from stratagem._core.variable_creation import initial_tensor
from stratagem._parameter_server.variables.shards import Layout
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InvalidArgumentError

_LOG = logging.getLogger("stratagem")

_LARGE = 10_000_000
"""From so many elements on a whole initial value is worth a warning."""

VariablePartitioner = Callable[..., Sequence[int]]
"""Takes `shape` and `dtype`; returns the number of shards, then ones."""


class ShardInfo(NamedTuple):
    """What an initial value that is made shard by shard gets to know.

    Attributes:
        shape: Shape of the shard.
        offset: Its first element in each dimension of the whole.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]


class Partitioning:
    """Divides variables as a user's partitioner says.

    Args:
        partitioner: The partitioner; None leaves all variables whole.

    Spec: PRT-1 to PRT-12.
    """

    def __init__(self, partitioner: VariablePartitioner | None) -> None:
        self._partitioner = partitioner

    @property
    def divides(self) -> bool:
        """Whether there is a partitioner."""
        return self._partitioner is not None

    def layout(self, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Return which rows of a variable go to which shard.

        Raises:
            InvalidArgumentError: The partitioner wants something else than to divide the rows.
                Spec: PRT-2.
        """
        if self._partitioner is None or not len(shape):
            return Layout.div(shape[0] if len(shape) else 1, 1)
        counts = self._partitioner(shape=torch.Size(shape), dtype=dtype)
        if not counts or counts[0] < 1 or any(count != 1 for count in counts[1:]):
            raise InvalidArgumentError(
                "variable_partitioner must return a list whose first element is the "
                "number of shards, at least 1, and whose others are all 1, not "
                f"{counts!r} for the shape {tuple(shape)}"
            )
        return Layout.div(shape[0], max(1, min(counts[0], shape[0])))

    def initial_values(
        self, value: Any, dtype: torch.dtype | None, shape: Sequence[int] | None
    ) -> list[torch.Tensor]:
        """Return the initial value of each shard; one where there are no shards.

        Args:
            value: As for `Variable`. If it can be called, and dtype and shape are given, it may
                take `shard_info`, or `partition_shape` and `partition_offset`, and then makes each
                shard's value by itself.
            dtype: Element type; by default that of the value.
            shape: Shape of the whole; by default that of the value.

        Raises:
            InvalidArgumentError: There is no value, or it does not fit.
        """
        if value is None:
            raise InvalidArgumentError(
                "a variable cannot be partitioned without specifying `initial_value`"
            )
        made = callable(value) and not isinstance(value, torch.Tensor | TensorStandIn)
        if made and dtype is not None and shape is not None:
            layout = self.layout(shape, dtype)
            return _made_by_shard(value, dtype, tuple(shape), layout)
        whole = initial_tensor(value, dtype, shape)
        layout = self.layout(whole.shape, whole.dtype)
        if len(layout.sizes) == 1:
            return [whole]
        if not made and whole.numel() > _LARGE:
            _warn_of_size(whole.numel())
        return [rows.select(whole) for rows in layout.shards]


def shard_name(variable: str, number: int) -> str:
    """Return what a shard of a variable is called. Spec: PRT-7."""
    return f"{variable}/part_{number}"


def _made_by_shard(
    make: Callable[..., Any], dtype: torch.dtype, shape: tuple[int, ...], layout: Layout
) -> list[torch.Tensor]:
    if len(layout.sizes) == 1:
        return [initial_tensor(make, dtype, shape)]
    values: list[torch.Tensor] = []
    whole: torch.Tensor | None = None
    for rows in layout.shards:
        if whole is None:
            value = initial_tensor(_made(make, _info(shape, rows)), dtype, None)
            if value.shape == (rows.count, *shape[1:]):
                values.append(value)
                continue
            whole = initial_tensor(value, dtype, shape)
        values.append(rows.select(whole))
    return values


def _info(shape: tuple[int, ...], rows: PartRows) -> ShardInfo:
    inner = shape[1:]
    return ShardInfo((rows.count, *inner), (rows.first, *[0] * len(inner)))


def _made(make: Callable[..., Any], info: ShardInfo) -> Any:
    if _takes_shard_info(make):
        return make(shard_info=info)
    try:
        return make(partition_shape=info.shape, partition_offset=info.offset)
    except (TypeError, ValueError):
        # It makes the whole value, or the same for all shards. Spec: PRT-10.
        return make()


def _takes_shard_info(make: Callable[..., Any]) -> bool:
    try:
        return "shard_info" in signature(make).parameters
    except ValueError:  # functions that are not written in Python
        return False


def _warn_of_size(elements: int) -> None:
    _LOG.warning(
        "the initial value of a variable to be partitioned has %d elements, which are "
        "all in this process; a function that takes `shard_info` as its initial_value "
        "makes them shard by shard",
        elements,
    )
