"""Values that a server makes: the right distribution, and the same in any parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs import random_rows
from stratagem_proto.programs.random_rows import InitialValues, check_initializer, philox
from stratagem_proto.v1.variable_pb2 import (
    Initializer,
    NormalShape,
    TruncatedNormalShape,
    UniformRange,
    VariableSpec,
)
from tests.distributions import assert_same
from tests.psserver.tables.specs import NORMAL, UNIFORM, parts, table_spec

INFINITE = math.inf


def truncated(mean: float, std: float, low: float, high: float) -> Initializer:
    shape = TruncatedNormalShape(mean=mean, std=std, low=low, high=high)
    return Initializer(seed=7, truncated_normal=shape)


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
    words = [np.array([word], dtype=np.uint64) for word in (*counter, *key)]
    made = philox(words[:4], (words[4], words[5]))
    assert [int(word[0]) for word in made] == expected


@pytest.mark.parametrize("initializer", [UNIFORM, NORMAL, truncated(0.0, 1.0, -2.0, 1.0)])
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


@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=70),
    st.sampled_from([UNIFORM, NORMAL, truncated(0.5, 1.0, 1.0, INFINITE)]),
)
def test_a_row_has_its_values_in_whatever_company_it_is_made(
    keys: list[int], initializer: Initializer
) -> None:
    values = InitialValues(table_spec("users", (0, 5), initializer))
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


TRUNCATED = {
    "torch's default": (0.0, 1.0, -2.0, 2.0),
    "a small deviation": (0.1, 0.02, -2.0, 2.0),
    "one side": (0.0, 1.0, 0.5, INFINITE),
    "no side": (1.0, 2.0, -INFINITE, INFINITE),
    "a narrow part": (0.0, 1.0, 0.25, 0.26),
    "a part above": (0.0, 1.0, 3.0, 9.0),
    # Further below, torch draws for minutes on a busy machine.
    "a part far below": (2.0, 0.5, -2.0, -1.0),
    "one number": (0.0, 1.0, 0.75, 0.75),
}


# For this part torch draws, and throws away, ten thousand numbers for each that it keeps.
RARE = pytest.param(
    "a part far below", marks=pytest.mark.full("the part above is made in the same way")
)


@pytest.mark.parametrize("name", [*(name for name in TRUNCATED if name != RARE.values[0]), RARE])
@pytest.mark.filterwarnings("ignore:mean is more than 2 std")
def test_truncated_values_are_distributed_as_torch_draws_them(name: str) -> None:
    mean, std, low, high = TRUNCATED[name]
    # So few that torch draws them in one thread.
    spec = table_spec("u", (6_000, 5), truncated(*TRUNCATED[name]), dtype=torch.float64)
    values = InitialValues(spec).whole()
    assert values.min() >= low
    assert values.max() <= high
    torch.manual_seed(0)
    drawn = torch.empty_like(values)
    torch.nn.init.trunc_normal_(drawn, mean, std, low, high)
    assert_same(values, drawn)


def test_truncated_values_come_no_further_than_torchs_after_rounding() -> None:
    spec = table_spec("u", (20_000, 5), truncated(0.0, 1.0, -0.1, 0.1), dtype=torch.bfloat16)
    bound = torch.tensor(0.1).bfloat16()
    assert InitialValues(spec).whole().abs().max() == bound


@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_rows_of_several_variables_are_those_of_each(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = Initializer(seed=5, normal=NORMAL.normal, zero_row=3)
    kinds = [UNIFORM, NORMAL, padded, Initializer(constant=0.5), truncated(0.0, 1.0, -2.0, 1.0)]
    asked = [
        (InitialValues(table_spec(f"t{number}", (50, *row), kind, dtype=dtype)), rows)
        for number, (kind, row, dtype) in enumerate(
            itertools.product(
                [*kinds, truncated(2.0, 1.0, 1.0, 3.0)], [(16,), (3,), (2, 8), (0,)], FLOATS
            )
        )
        for rows in (torch.tensor([3, 49, 3, 0]), torch.empty(0, dtype=torch.int64))
    ]
    alone = [each.rows(rows) for each, rows in asked]
    monkeypatch.setattr(random_rows, "_ELEMENTS_AT_ONCE", at_once)
    for expected, joint in zip(alone, random_rows.initial_rows(asked), strict=True):
        assert joint.dtype == expected.dtype
        assert torch.equal(joint, expected)


FLOATS = (torch.float32, torch.float64, torch.bfloat16)


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
        (truncated(0, 0, -1, 1), torch.float32, r"\(0.0, 0.0, -1.0, 1.0\) are no parameters"),
        (truncated(0, 1, 2, 1), torch.float32, r"2.0, 1.0\) are no parameters"),
        (truncated(0, 1, math.nan, 1), torch.float32, r"nan, 1.0\) are no parameters"),
        (truncated(math.nan, 1, 0, 1), torch.float32, r"\(nan, 1.0, 0.0, 1.0\) are no"),
        (truncated(0, 1, 38, 39), torch.float32, r"38.0, 39.0\) are no parameters"),
        (truncated(0, 1, 0, 1), torch.int8, "a torch.int8 cannot be random"),
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
