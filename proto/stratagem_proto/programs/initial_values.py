"""Initial values that servers make row by row, the same however a variable is divided."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

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


_Rows: TypeAlias = "tuple[InitialValues, npt.NDArray[np.int64]]"


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
    def columns(self) -> int:
        """The elements of a row."""
        return math.prod(self.row_shape)

    @cached_property
    def kind(self) -> str:
        """What the values are: the name of a field of an `Initializer`."""
        return self.initializer.WhichOneof("kind") or ""

    @cached_property
    def scale(self) -> tuple[float, float]:
        """What numbers of a uniform or normal kind are multiplied by, and what is added then."""
        if self.kind == "uniform":
            low, high = self.initializer.uniform.low, self.initializer.uniform.high
            return high - low, low
        return self.initializer.normal.std, self.initializer.normal.mean

    @cached_property
    def zero_row(self) -> int | None:
        """The row of the whole that is zero all the same; None for none."""
        return self.initializer.zero_row if self.initializer.HasField("zero_row") else None

    @cached_property
    def _part(self) -> PartRows:
        return PartRows.of(self.spec)

    def whole_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return which rows of the whole variable some rows of this part are."""
        return self._part.whole(rows)

    @cached_property
    def key(self) -> int:
        """64 bits that the numbers of this variable depend on, beside row and column."""
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
        at_once = max(1, _ELEMENTS_AT_ONCE // max(1, self.columns))
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
        return initial_rows([(self, rows)])[0]


def initial_rows(asked: Sequence[tuple[InitialValues, torch.Tensor]]) -> list[torch.Tensor]:
    """Return the values of some rows of each of several variables, as `InitialValues.rows`.

    Random numbers of one kind are made together. A call takes 200 us for up to 100 rows of 16
    elements, and 0.6 us for each row more; a call for each of 26 tables took 31 us a row.
    """
    made = list[torch.Tensor]()
    kinds = defaultdict[object, list[int]](list)
    for number, (initial, rows) in enumerate(asked):
        shape = (len(rows), *initial.row_shape)
        if initial.kind == "constant":
            made.append(torch.full(shape, initial.initializer.constant, dtype=initial.dtype))
            continue
        made.append(torch.empty(shape, dtype=initial.dtype))
        if made[-1].numel():
            kinds[initial.kind, initial.columns, initial.dtype].append(number)
    for numbers in kinds.values():
        _draw_all([asked[number] for number in numbers], [made[number] for number in numbers])
    for (initial, rows), values in zip(asked, made, strict=True):
        if initial.zero_row is not None:
            values[initial.whole_rows(rows) == initial.zero_row] = 0
    return made


def _draw_all(
    asked: Sequence[tuple[InitialValues, torch.Tensor]], made: Sequence[torch.Tensor]
) -> None:
    """Fill tensors with random values of one kind, dtype and size of rows."""
    most = max(1, _ELEMENTS_AT_ONCE // asked[0][0].columns)
    batch, into, count = list[_Rows](), list[torch.Tensor](), 0
    for (initial, rows), values in zip(asked, made, strict=True):
        whole_rows = initial.whole_rows(rows).numpy()
        for start in range(0, len(rows), most):
            some = whole_rows[start : start + most]
            if batch and count + len(some) > most:
                _draw(batch, into)
                batch, into, count = [], [], 0
            batch.append((initial, some))
            into.append(values[start : start + most] if len(rows) > most else values)
            count += len(some)
    _draw(batch, into)


def _draw(batch: Sequence[_Rows], into: list[torch.Tensor]) -> None:
    counts, initials = [len(rows) for _, rows in batch], [initial for initial, _ in batch]
    first, rows = initials[0], np.concatenate([rows for _, rows in batch])
    keys = np.array([each.key for each in initials], np.uint64).repeat(counts)
    words = counter_random.words_of_rows(rows, first.columns + first.columns % 2, keys)
    if first.kind == "truncated_normal":
        ends = accumulate(counts)
        each = zip(initials, np.split(words, [*ends][:-1]), strict=True)
        parts = [_truncated_normal(of, one.initializer.truncated_normal) for one, of in each]
        numbers = np.concatenate(parts)
    else:
        drawn = counter_random.uniform if first.kind == "uniform" else counter_random.normal
        scales = np.array([each.scale for each in initials]).repeat(counts, axis=0)
        numbers = drawn(words) * scales[:, :1] + scales[:, 1:]
    values = torch.from_numpy(numbers[:, : first.columns]).to(first.dtype)
    parts_made = values.split(counts)
    torch._foreach_copy_([each.view(len(each), -1) for each in into], [*parts_made])


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
