"""Whether two samples may be of one distribution."""

from __future__ import annotations

import math

import torch


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return Kolmogorov's and Smirnov's statistic, in units of what a critical value is of.

    Of two samples of one distribution it is above 2.5 once in 130,000 times.
    """
    first, second = (sample.detach().double().flatten().sort().values for sample in (one, other))
    values = torch.cat((first, second))
    shares = [torch.searchsorted(each, values, right=True) / len(each) for each in (first, second)]
    scale = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return float((shares[0] - shares[1]).abs().max()) * scale


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Check that two samples may be of one distribution."""
    found = distance(one, other)
    assert found < 2.5, f"the samples are {found:.1f} apart: {summary(one)}, {summary(other)}"


def summary(sample: torch.Tensor) -> str:
    """What a message says of a sample."""
    of = sample.detach().double()
    return f"mean {of.mean():.4g}, deviation {of.std():.4g}, {of.min():.4g} to {of.max():.4g}"
