"""Rows made by random numbers that can be repeated: initial values, and rounding to fewer bits."""

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
from stratagem_proto.protocol import name_of_whole
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_UNSPECIFIED, TensorSpec
from stratagem_proto.v1.variable_pb2 import Initializer, TruncatedNormalShape, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype

Words = npt.NDArray[np.uint64]
"""32-bit words, each in the lower half of a 64-bit one."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows."""

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: Sequence[Words], key: tuple[Words, Words]) -> list[Words]:
    """Philox-4x32-10: four random words for each counter of four words.

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Args:
        counter: Four arrays that broadcast against each other.
        key: Two arrays of words, which broadcast against the counters.
    """
    a, b, c, d = counter
    for number in range(_ROUNDS):
        first, second = (
            (word + np.uint64(number * step)) & _LOW for word, step in zip(key, _WEYL, strict=True)
        )
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (high >> _HALF) ^ b ^ first, high & _LOW
        c, d = (low >> _HALF) ^ d ^ second, low & _LOW
    return [a, b, c, d]


def words_of_rows(rows: Rows, columns: int, keys: Words | int) -> Words:
    """Return a random word for each element of some rows.

    Args:
        rows: Numbers of the rows; any int64.
        columns: Elements of a row.
        keys: 64 bits, or as many for each row.

    Returns:
        Words of shape (rows, columns). One depends on its row with its key and on its column, and
        on nothing else.
    """
    blocks = np.arange(-(-columns // 4), dtype=np.uint64)
    numbers = rows.view(np.uint64)[:, None]
    none = np.zeros(1, dtype=np.uint64)
    counter = (blocks, none, numbers & _LOW, numbers >> _HALF)
    key = np.asarray(keys, np.uint64).reshape(-1, 1)
    made = philox(counter, (key & _LOW, key >> _HALF))
    return np.stack(made, axis=-1).reshape(len(rows), -1)[:, :columns]


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """Return evenly distributed numbers from 0 to below 1."""
    return words.astype(np.float64) * 2.0**-32


def normal(words: Words) -> npt.NDArray[np.float64]:
    """Return normally distributed numbers, from pairs of words along an even last axis.

    Box and Muller, "A note on the generation of random normal deviates", 1958. With 32-bit words
    the largest is 6.7.
    """
    first, second = words[..., 0::2], words[..., 1::2]
    radius = np.sqrt(-2.0 * np.log((first + 1.0) * 2.0**-32))
    angle = uniform(second) * (2.0 * np.pi)
    made = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
    return made.reshape(words.shape)


NARROW = frozenset({torch.bfloat16, torch.float16})
"""The dtypes that rows of float32 may be stored in."""


def stored_dtype(spec: VariableSpec) -> torch.dtype:
    """Return the dtype in which the rows of a table, or of a slot of one, are stored."""
    return decode_dtype(spec.table.row_dtype or spec.tensor.dtype)


def row_nbytes(spec: VariableSpec) -> int:
    """Return the size of one row of a variable, in bytes."""
    row = math.prod(spec.tensor.shape[1:])
    return row * stored_dtype(spec).itemsize


def stored_rows(spec: VariableSpec, count: int) -> TensorSpec:
    """Return the description of so many rows of a table as they are stored."""
    tensor = spec.tensor
    is_narrow = spec.table.row_dtype != DATA_TYPE_UNSPECIFIED
    dtype = spec.table.row_dtype if is_narrow else tensor.dtype
    return TensorSpec(dtype=dtype, shape=(count, *tensor.shape[1:]))


def round_to_nearest(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values in a dtype, each the nearest one; what is too large becomes the largest.

    Args:
        values: Floating-point numbers. Those that are not finite stay what they are.
        dtype: One of `NARROW`, or one that has all of them.
    """
    if values.dtype == dtype or dtype not in NARROW:
        return values.to(dtype)
    wide, most = values.float(), torch.finfo(dtype).max
    return wide.clamp(-most, most).where(wide.isfinite(), wide).to(dtype)


def round_stochastically(
    values: torch.Tensor, dtype: torch.dtype, rows: torch.Tensor, seed: bytes
) -> torch.Tensor:
    """Return rows in a narrower dtype, where each number is one of its two neighbours at random.

    The odds of the upper one are what the number has gone of the way to it, so that the mean is the
    number itself: a sum of many changes is right, though each is too small to make a difference by
    itself. Whoever repeats this with the same seed gets the same bytes. What is too large becomes
    the largest number of the dtype; what is not finite stays as it is.

    Args:
        values: float32 of shape (rows, ...).
        dtype: One of `NARROW`.
        rows: The numbers or keys of the rows, int64.
        seed: What no other rounding of these rows has in common.
    """
    if not values.numel():
        return values.to(dtype)
    wide = values.reshape(len(rows), math.prod(values.shape[1:]))
    key = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
    draw = _drawn_halves if dtype == torch.bfloat16 else _drawn
    words = torch.from_numpy(draw(rows.numpy(), wide.shape[1], key))
    made = _to_bfloat16(wide, words) if dtype == torch.bfloat16 else _to_float16(wide, words)
    is_inside = wide.abs() < torch.finfo(dtype).max
    if not is_inside.all():
        made = made.where(is_inside, round_to_nearest(wide, dtype))
    return made.view(values.shape)


def _drawn(rows: Rows, columns: int, key: int) -> Rows:
    """Return 32 random bits for each element."""
    return words_of_rows(rows, columns, key).view(np.int64)


def _drawn_halves(rows: Rows, columns: int, key: int) -> Rows:
    """Return 16 random bits for each element."""
    words = words_of_rows(rows, -(-columns // 2), key)
    halves = np.stack((words & np.uint64(0xFFFF), words >> np.uint64(16)), axis=-1)
    return halves.reshape(len(rows), -1)[:, :columns].astype(np.int64)


def _to_bfloat16(wide: torch.Tensor, halves: torch.Tensor) -> torch.Tensor:
    # The upper half of a float32 is a bfloat16, and the lower half is how far it is to the next.
    bits = wide.contiguous().view(torch.int32) + halves.int()
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def _to_float16(wide: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    info = torch.finfo(torch.float16)
    number = wide.double()
    exponent = torch.frexp(number).exponent.clamp(min=_exponent(info.smallest_normal))
    step = torch.ldexp(torch.full_like(number, info.eps / 2), exponent)
    return ((number / step + words * 2.0**-32).floor() * step).to(torch.float16)


def _exponent(number: float) -> int:
    return int(np.frexp(number)[1])


# Numbers are made in double precision; this limits the memory for them to what caches hold: with
# eight times as many, 131,072 rows of 16 took 160 ms instead of 120.
_ELEMENTS_AT_ONCE = 1 << 17

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
        return PartRows.from_spec(self.spec)

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
    words = words_of_rows(rows, first.columns + first.columns % 2, keys)
    if first.kind == "truncated_normal":
        ends = accumulate(counts)
        each = zip(initials, np.split(words, [*ends][:-1]), strict=True)
        parts = [_truncated_normal(of, one.initializer.truncated_normal) for one, of in each]
        numbers = np.concatenate(parts)
    else:
        drawn = uniform if first.kind == "uniform" else normal
        scales = np.array([each.scale for each in initials]).repeat(counts, axis=0)
        numbers = drawn(words) * scales[:, :1] + scales[:, 1:]
    values = torch.from_numpy(numbers[:, : first.columns]).to(first.dtype)
    parts_made = values.split(counts)
    torch._foreach_copy_([each.view(len(each), -1) for each in into], [*parts_made])


def _truncated_normal(words: Words, shape: TruncatedNormalShape) -> npt.NDArray[np.float64]:
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
