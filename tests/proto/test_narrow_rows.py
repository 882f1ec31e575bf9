"""Rows in fewer bits: rounded at random, so that means are right."""

from __future__ import annotations

import math

import pytest
import torch

from stratagem_proto.programs.random_rows import NARROW, round_stochastically, round_to_nearest

DTYPES = sorted(NARROW, key=str)


def neighbours(number: float, dtype: torch.dtype) -> tuple[float, float]:
    """The largest number of a dtype that is not above one, and the smallest that is not below."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).double()
    every = every[every.isfinite()]
    return float(every[every <= number].max()), float(every[every >= number].min())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "number", [1.0, 1.0001, -0.3, 1e-6, 3.1e-5, -2.5e-8, 5e-8, 60000.7, 0.0, 2.0**-24]
)
def test_a_number_becomes_a_neighbour_and_is_itself_on_average(
    dtype: torch.dtype, number: float
) -> None:
    count = 20_000
    number = float(torch.tensor(number))
    values = torch.full((count, 3), number)
    found = round_stochastically(values, dtype, torch.arange(count), b"seed").double()
    low, high = neighbours(number, dtype)
    assert {*found.unique().tolist()} <= {low, high}
    # Five standard deviations of the mean of so many draws.
    bound = 5 * (high - low) / 2 / math.sqrt(found.numel())
    assert abs(float(found.mean()) - number) <= bound
    # Columns are independent of each other.
    assert all(abs(float(column.mean()) - number) <= 2 * bound for column in found.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_whoever_repeats_it_gets_the_same_bytes_in_any_order(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(50, 2, 5, generator=generator)
    keys = torch.randperm(50, generator=generator) - 2**62
    once = round_stochastically(values, dtype, keys, b"a")
    some = torch.tensor([7, 3, 44])
    assert torch.equal(round_stochastically(values[some], dtype, keys[some], b"a"), once[some])
    assert not torch.equal(round_stochastically(values, dtype, keys, b"b"), once)
    assert not torch.equal(round_stochastically(values, dtype, keys + 1, b"a"), once)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_too_large_is_the_largest_and_what_is_not_finite_stays(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    values = torch.tensor([[3.4e38, -3.4e38, most, -most, math.inf, -math.inf, math.nan]])
    for found in (
        round_stochastically(values, dtype, torch.tensor([5]), b""),
        round_to_nearest(values, dtype),
    ):
        expected = torch.tensor([[most, -most, most, -most, math.inf, -math.inf, math.nan]])
        assert torch.equal(found.float().nan_to_num(7.0), expected.nan_to_num(7.0))


def test_numbers_that_a_dtype_has_stay_what_they_are() -> None:
    for dtype in DTYPES:
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        every = every[every.isfinite()].float()[:, None]
        found = round_stochastically(every, dtype, torch.arange(len(every)), b"")
        assert torch.equal(found.float(), every)
        assert round_stochastically(every[:0], dtype, torch.arange(0), b"").shape == (0, 1)


def test_a_dtype_with_more_digits_and_less_range_takes_the_largest() -> None:
    wide = torch.tensor([1e10, -1e10, 1.0], dtype=torch.bfloat16)
    assert round_to_nearest(wide, torch.float16).tolist() == [65504.0, -65504.0, 1.0]
