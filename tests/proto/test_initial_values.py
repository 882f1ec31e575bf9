"""Values that a server makes: the right distribution, and the same in any parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.counter_random import philox
from stratagem_proto.programs.initial_values import InitialValues, check_initializer
from stratagem_proto.v1.variable_pb2 import (
    Initializer,
    NormalShape,
    UniformRange,
    VariableSpec,
)
from tests.psserver.tables.specs import NORMAL, UNIFORM, parts, table_spec


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            (0xFFFFFFFF, 0xFFFFFFFF),
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_words_that_its_authors_published(
    counter: list[int], key: tuple[int, int], expected: list[int]
) -> None:
    words = [np.array([word], dtype=np.uint64) for word in counter]
    assert [int(word[0]) for word in philox(words, key)] == expected


@pytest.mark.parametrize("initializer", [UNIFORM, NORMAL])
@pytest.mark.parametrize("number", [2, 3, 7])
@pytest.mark.parametrize("columns", [1, 3, 16])
def test_parts_have_the_values_of_the_whole(
    initializer: Initializer, number: int, columns: int
) -> None:
    spec = table_spec("users", (23, columns), initializer)
    whole = InitialValues(spec).whole()
    divided = [InitialValues(part).whole() for part in parts(spec, number)]
    assert torch.equal(torch.cat(divided), whole)
    assert len(whole.unique()) == whole.numel()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=70))
def test_a_row_has_its_values_in_whatever_company_it_is_made(keys: list[int]) -> None:
    values = InitialValues(table_spec("users", (0, 5)))
    together = values.rows(torch.tensor(keys))
    for key, row in zip(keys, together, strict=True):
        assert torch.equal(values.rows(torch.tensor([key]))[0], row)


def test_a_large_variable_is_made_in_pieces_like_a_small_one() -> None:
    values = InitialValues(table_spec("users", (70_001, 16), NORMAL))
    rows = torch.tensor([0, 65_535, 65_536, 70_000])
    assert torch.equal(values.whole()[rows], values.rows(rows))


def seeded(initializer: Initializer, seed: int) -> Initializer:
    other = Initializer()
    other.CopyFrom(initializer)
    other.seed = seed
    return other


@pytest.mark.parametrize(
    "other",
    [
        table_spec("items", (50_000, 4)),
        table_spec("users", (50_000, 4), seeded(NORMAL, 8)),
    ],
)
def test_another_name_or_seed_gives_unrelated_values(other: VariableSpec) -> None:
    mine = InitialValues(table_spec("users", (50_000, 4))).whole().flatten()
    theirs = InitialValues(other).whole().flatten()
    assert correlation(mine, theirs) < 0.01


def test_neighbours_are_unrelated() -> None:
    values = InitialValues(table_spec("users", (50_000, 4))).whole().double()
    assert correlation(values[1:].flatten(), values[:-1].flatten()) < 0.01
    assert correlation(values[:, 0], values[:, 1]) < 0.02
    assert correlation(values[:, 0] ** 2, values[:, 1] ** 2) < 0.02


def correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack((first, second)))[0, 1]))


def normal_share(values: torch.Tensor) -> torch.Tensor:
    share: torch.Tensor = torch.special.ndtr((values - 2.0) / 0.5)
    return share


def uniform_share(values: torch.Tensor) -> torch.Tensor:
    return (values + 3.0) / 4.0


@pytest.mark.parametrize(
    ("initializer", "mean", "variance", "share"),
    [
        (Initializer(normal=NormalShape(mean=2, std=0.5)), 2.0, 0.25, normal_share),
        (Initializer(uniform=UniformRange(low=-3, high=1)), -1.0, 4 / 3, uniform_share),
    ],
)
def test_values_are_distributed_as_described(
    initializer: Initializer,
    mean: float,
    variance: float,
    share: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    spec = table_spec("users", (40_000, 5), initializer, dtype=torch.float64)
    values = InitialValues(spec).whole().flatten()
    count = len(values)
    assert float(values.mean()) == pytest.approx(mean, abs=4 * (variance / count) ** 0.5)
    assert float(values.var()) == pytest.approx(variance, rel=0.02)
    # Kolmogorov and Smirnov's statistic; above this one time in 1000.
    expected = torch.arange(1, count + 1) / count
    distance = (share(values.sort().values) - expected).abs().max()
    assert float(distance) < 1.95 / math.sqrt(count)


def test_uniform_values_stay_in_their_range() -> None:
    values = InitialValues(table_spec("users", (100_000, 4), UNIFORM)).whole()
    assert float(values.min()) >= -1.0
    assert float(values.max()) <= 1.0


@pytest.mark.parametrize("number", [1, 3])
def test_the_padding_row_of_the_whole_is_zero(number: int) -> None:
    initializer = seeded(NORMAL, 1)
    initializer.zero_row = 5
    spec = table_spec("users", (9, 4), initializer)
    whole = torch.cat([InitialValues(part).whole() for part in parts(spec, number)])
    assert (whole == 0).all(1).nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_values_are_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    exact = InitialValues(table_spec("u", (9, 4), dtype=torch.float64)).whole()
    values = InitialValues(table_spec("u", (9, 4), dtype=dtype)).whole()
    assert torch.equal(values, exact.to(dtype))


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_variables_of_any_shape_have_a_constant(shape: tuple[int, ...]) -> None:
    spec = VariableSpec(name="count", initializer=Initializer(constant=3.0))
    spec.tensor.CopyFrom(table_spec("u", (1, 1), dtype=torch.int64).tensor)
    spec.tensor.shape[:] = shape
    expected = torch.full(shape, 3, dtype=torch.int64)
    assert torch.equal(InitialValues(spec).whole(), expected)


@pytest.mark.parametrize(
    ("initializer", "dtype", "says"),
    [
        (Initializer(), torch.float32, "say a constant"),
        (NORMAL, torch.int64, "a torch.int64 cannot be random"),
        (Initializer(constant=300), torch.uint8, "a torch.uint8 cannot be 300"),
        (
            Initializer(normal=NormalShape(mean=0, std=-1)),
            torch.float32,
            r"\(0.0, -1.0\) are no parameters",
        ),
        (
            Initializer(uniform=UniformRange(low=0, high=math.inf)),
            torch.float32,
            r"\(0.0, inf\) are no parameters",
        ),
    ],
)
def test_a_value_that_cannot_be_made_is_refused(
    initializer: Initializer, dtype: torch.dtype, says: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        check_initializer(table_spec("users", (3, 2), initializer, dtype=dtype))
    assert caught.value.variable == "users"


def test_parts_along_other_dimensions_are_refused() -> None:
    spec = parts(table_spec("users", (4, 4)), 1)[0]
    spec.partition.full_shape[1], spec.partition.offset[1] = 8, 4
    with pytest.raises(InvalidArgumentError, match="along the first dimension"):
        check_initializer(spec)
