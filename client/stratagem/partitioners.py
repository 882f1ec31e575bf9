"""Rules for dividing variables into shards.

Pass one to `ParameterServerStrategy(variable_partitioner=...)`, or a function of your own that
takes `shape` and `dtype` and returns a list like theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import torch

from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

__all__ = ["FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner"]


class Partitioner:
    """Base of the partitioners. Spec: PTN-1."""

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, axis: int = 0) -> list[int]:
        """Return into how many shards a variable is divided.

        Args:
            shape: Shape of the whole variable.
            dtype: Type of its elements.
            axis: The dimension to divide. Strategies divide rows: dimension 0.

        Returns:
            A number for each dimension: that of the shards at `axis`, elsewhere 1.
        """
        raise UnimplementedError(
            f"{type(self).__name__}.__call__ must be implemented in descendants"
        )


class FixedShardsPartitioner(Partitioner):
    """Divides into a fixed number of shards, or one for each row if that is less.

    Args:
        num_shards: The number.

    Spec: PTN-2.
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, axis: int = 0) -> list[int]:
        """Return the number of shards at `axis`; see `Partitioner`.

        Raises:
            IndexError: There is no such axis. Spec: PTN-6.
        """
        return _list(shape, axis, min(self._num_shards, shape[axis]))


class MinSizePartitioner(Partitioner):
    """Divides into as many shards as there can be of at least some size.

    Args:
        min_shard_bytes: That size. Where it does not divide the whole, shards are a little smaller.
        max_shards: The most shards that there may be.
        bytes_per_string: Accepted for the sake of programs for TensorFlow; torch has no strings.

    Raises:
        InvalidArgumentError: An argument is less than 1.

    Spec: PTN-3.
    """

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        _require_positive("min_shard_bytes", min_shard_bytes)
        _require_positive("max_shards", max_shards)
        _require_positive("bytes_per_string", bytes_per_string)
        self._min_shard_bytes = min_shard_bytes
        self._max_shards = max_shards

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, axis: int = 0) -> list[int]:
        """Return the number of shards at `axis`; see `Partitioner`.

        Raises:
            InvalidArgumentError: There is no such axis, or a size is not known. Spec: PTN-6, PTN-7.
        """
        _require_divisible(shape, axis)
        wanted = ceil(prod(shape) * dtype.itemsize / self._min_shard_bytes)
        return _list(shape, axis, max(1, min(wanted, self._max_shards, shape[axis])))


class MaxSizePartitioner(Partitioner):
    """Divides into as few shards as there can be of at most some size.

    A shard has at least one row, however large.

    Args:
        max_shard_bytes: That size.
        max_shards: The most shards that there may be, even if they get larger; None for any number.
        bytes_per_string: Accepted for the sake of programs for TensorFlow; torch has no strings.

    Raises:
        InvalidArgumentError: An argument is less than 1.

    Spec: PTN-4.
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        _require_positive("max_shard_bytes", max_shard_bytes)
        if max_shards is not None:
            _require_positive("max_shards", max_shards)
        _require_positive("bytes_per_string", bytes_per_string)
        self._max_shard_bytes = max_shard_bytes
        self._max_shards = max_shards

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, axis: int = 0) -> list[int]:
        """Return the number of shards at `axis`; see `Partitioner`.

        Raises:
            InvalidArgumentError: There is no such axis, or a size is not known. Spec: PTN-6, PTN-7.
        """
        _require_divisible(shape, axis)
        row_bytes = prod(shape) * dtype.itemsize // max(1, shape[axis])
        rows = max(1, self._max_shard_bytes // max(1, row_bytes))
        wanted = ceil(shape[axis] / rows)
        return _list(shape, axis, max(1, min(wanted, self._max_shards or wanted)))


def _list(shape: Sequence[int], axis: int, shards: int) -> list[int]:
    counts = [1] * len(shape)
    counts[axis] = shards
    return counts


def _require_positive(argument: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(f"Argument `{argument}` must be positive, not {value}")


def _require_divisible(shape: Sequence[int], axis: int) -> None:
    if any(size is None for size in shape):
        raise InvalidArgumentError(
            f"shape is not fully defined: {tuple(shape)}; a partitioner by size needs "
            "to know every dimension"
        )
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(
            f"Cannot partition variable along axis {axis} when shape is only {tuple(shape)}"
        )
