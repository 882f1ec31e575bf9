"""Initial values that servers make row by row, the same however a variable is divided."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.division import PartRows
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs import counter_random
from stratagem_proto.protocol import name_of_whole
from stratagem_proto.v1.variable_pb2 import Initializer, TruncatedNormalShape, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype

# Numbers are made in double precision; this limits the memory for them.
_ELEMENTS_AT_ONCE = 1 << 20

# In standard deviations; the odds of what is farther from the mean are no number above 0.
_FARTHEST_BOUND = 37.0


def whole_name(spec: VariableSpec) -> str:
    """Return the name of the whole variable that a spec describes or describes a part of."""
    return name_of_whole(spec.name) if spec.HasField("partition") else spec.name


@dataclass(frozen=True)
class InitialValues:
    """The initial values of one variable, made when they are asked for."""

    spec: VariableSpec

    @property
    def initializer(self) -> Initializer:
        return self.spec.initializer

    @cached_property
    def dtype(self) -> torch.dtype:
        return decode_dtype(self.spec.tensor.dtype)

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.spec.tensor.shape[1:])

    @cached_property
    def _columns(self) -> int:
        return math.prod(self.row_shape)

    @cached_property
    def _part(self) -> PartRows:
        return PartRows.of(self.spec)

    @cached_property
    def _key(self) -> int:
        name = self.initializer.seed.to_bytes(8, "little") + whole_name(self.spec).encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")

    def whole(self) -> torch.Tensor:
        """Return the value of the whole variable or part."""
        shape = tuple(self.spec.tensor.shape)
        rows = self.of_range(range(shape[0] if shape else 1))
        return rows if shape else rows.reshape(())

    def of_range(self, rows: range) -> torch.Tensor:
        """Return the values of a range of rows, like `rows`."""
        value = torch.empty(len(rows), *self.row_shape, dtype=self.dtype)
        at_once = max(1, _ELEMENTS_AT_ONCE // max(1, self._columns))
        for low in range(0, len(rows), at_once):
            some = rows[low : low + at_once]
            made = self.rows(torch.arange(some.start, some.stop, some.step))
            value[low : low + at_once] = made
        return value

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of some rows.

        Args:
            rows: int64 vector of rows of this part, or of keys of a dynamic table.

        Returns:
            A new tensor of the shape (rows, *row shape).
        """
        whole_rows = self._part.whole(rows)
        made = self._made(whole_rows).reshape(len(rows), *self.row_shape)
        if self.initializer.HasField("zero_row"):
            made[whole_rows == self.initializer.zero_row] = 0
        return made

    def _made(self, rows: torch.Tensor) -> torch.Tensor:
        kind = self.initializer.WhichOneof("kind")
        if kind == "constant":
            constant = self.initializer.constant
            return torch.full((len(rows), self._columns), constant, dtype=self.dtype)
        even = self._columns + self._columns % 2
        words = counter_random.words_of_rows(rows.numpy(), even, self._key)
        if kind == "uniform":
            low, high = self.initializer.uniform.low, self.initializer.uniform.high
            numbers = counter_random.uniform(words) * (high - low) + low
        elif kind == "normal":
            mean, std = self.initializer.normal.mean, self.initializer.normal.std
            numbers = counter_random.normal(words) * std + mean
        else:
            numbers = _truncated_normal(words, self.initializer.truncated_normal)
        return torch.from_numpy(numbers[:, : self._columns]).to(self.dtype)


def _truncated_normal(
    words: counter_random.Words, shape: TruncatedNormalShape
) -> npt.NDArray[np.float64]:
    """Return the numbers below which one between the bounds comes with evenly drawn odds."""
    low, high, sign = *_standard_bounds(shape), 1.0
    if low > 0:
        # Odds near 0 are far more precise than odds near 1.
        low, high, sign = -high, -low, -1.0
    least, most = _normal_odds(low), _normal_odds(high)
    odds = least + (words + 0.5) * 2.0**-32 * (most - least)
    normal: npt.NDArray[np.float64] = torch.special.ndtri(torch.from_numpy(odds)).numpy()
    numbers = normal * (sign * shape.std) + shape.mean
    return numbers.clip(shape.low, shape.high)


def _is_drawable(shape: TruncatedNormalShape) -> bool:
    """Whether normal numbers of the mean and deviation come between the bounds."""
    if not (shape.std > 0 and shape.low <= shape.high):
        return False
    low, high = _standard_bounds(shape)
    return low <= _FARTHEST_BOUND and high >= -_FARTHEST_BOUND


def _standard_bounds(shape: TruncatedNormalShape) -> tuple[float, float]:
    """Return the bounds in standard deviations from the mean."""
    return (shape.low - shape.mean) / shape.std, (shape.high - shape.mean) / shape.std


def _normal_odds(bound: float) -> float:
    """Return the odds that a normal number of mean 0 and deviation 1 is below a bound."""
    return 0.5 * math.erfc(-bound / math.sqrt(2.0))


def check_initializer(spec: VariableSpec) -> None:
    """Check that the initial value that a spec describes can be made.

    Raises:
        InvalidArgumentError: It has no kind, its numbers are none, or the dtype or the partition
            allows no such value.
    """
    if problem := _problem(spec):
        raise InvalidArgumentError(
            f"the initial value of {spec.name!r} cannot be made: {problem}", variable=spec.name
        )


def _problem(spec: VariableSpec) -> str:
    dtype, initializer = decode_dtype(spec.tensor.dtype), spec.initializer
    if any(spec.partition.offset[1:]):
        return "only parts along the first dimension have rows of the whole"
    match initializer.WhichOneof("kind"):
        case "constant":
            return _constant_problem(dtype, initializer.constant)
        case "uniform":
            numbers = [initializer.uniform.low, initializer.uniform.high]
            fits = all(map(math.isfinite, numbers)) and numbers[0] <= numbers[1]
        case "normal":
            numbers = [initializer.normal.mean, initializer.normal.std]
            fits = all(map(math.isfinite, numbers)) and numbers[1] >= 0
        case "truncated_normal":
            shape = initializer.truncated_normal
            numbers = [shape.mean, shape.std, shape.low, shape.high]
            fits = all(map(math.isfinite, numbers[:2])) and _is_drawable(shape)
        case _:
            return "say a constant, a uniform, a normal or a truncated normal distribution"
    if not dtype.is_floating_point:
        return f"a {dtype} cannot be random; give a constant"
    if not fits:
        return f"{tuple(numbers)} are no parameters of a distribution"
    return ""


def _constant_problem(dtype: torch.dtype, constant: float) -> str:
    try:
        torch.full((), constant, dtype=dtype)
    except (RuntimeError, ValueError, OverflowError) as error:
        return f"a {dtype} cannot be {constant}: {error}"
    return ""
