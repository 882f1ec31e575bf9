"""A log of clicks in the shape of Criteo's that is computed instead of stored.

Each example is a function of its number: 13 measurements, 26 ids and whether there was a click. So
workers read any part of an endless log without a file, and the chance that each click had is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MEASUREMENTS, COLUMNS = 13, 26

ROWS = tuple(10_000_000 // rank for rank in range(1, COLUMNS + 1))
"""How many ids each column has: by Zipf's law, 38.5 million together."""

# Of the logit: its mean, and what each of its terms is multiplied by.
_MEAN, _MEASUREMENT, _EFFECT, _PRODUCT = -1.5, 0.2, 0.3, 0.2
# The chance of the id of rank r is about r to this power.
_ZIPF = -1.2
# Greater than any number of ids, so that multiplying by it permutes them.
_PRIME = np.uint64(2_654_435_761)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Words: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.float64]


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        dense: float32 (N, 13), normally distributed.
        ids: int64 (26, N), those of each column from 0 on.
        clicked: float32 (N,), 0 or 1.
        chance: float32 (N,), the probability of 1 that `clicked` was drawn with.
    """

    dense: Tensor
    ids: Tensor
    clicked: Tensor
    chance: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(each.to(device) for each in self))


class ClickLog:
    """The log of one seed.

    The logit of a click is a weighted sum of the measurements, plus an effect that each id has,
    plus the products of the effects of two neighbouring columns. Effects and weights are normally
    distributed: they are hashes.

    Args:
        rows: How many ids each column has.
        seed: Which log.
    """

    def __init__(self, rows: Sequence[int] = ROWS, seed: int = 0) -> None:
        self._rows = np.array(rows, np.uint64)[:, None]
        kinds = MEASUREMENTS, COLUMNS, COLUMNS, 1, MEASUREMENTS
        keys = _mixed(np.arange(sum(kinds), dtype=np.uint64) + np.uint64(seed << 16))
        measured, ids, effects, clicks, weights = np.split(keys, np.cumsum(kinds)[:-1])
        self._measured, self._ids, self._effects = measured, ids, effects
        self._clicks, self._weights = clicks, _normal(weights)

    def batch(self, first: int, count: int) -> Batch:
        """The examples from `first` to before `first + count`."""
        numbers = np.arange(first, first + count, dtype=np.uint64)
        dense = _normal(_hashed(self._measured, numbers))
        ids = self._drawn(_uniform(_hashed(self._ids, numbers)))
        chance = 1 / (1 + np.exp(-self._logits(dense, ids)))
        clicked = _uniform(_hashed(self._clicks, numbers))[0] < chance
        return Batch(
            torch.from_numpy(dense.T).float(),
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(clicked).float(),
            torch.from_numpy(chance).float(),
        )

    def batches(self, first: int, count: int, size: int) -> Iterator[Batch]:
        """The same in batches."""
        for start in range(first, first + count, size):
            yield self.batch(start, min(size, first + count - start))

    def _drawn(self, uniform: Numbers) -> Words:
        """Ids by the inverse of the distribution of their ranks."""
        power = 1 + _ZIPF
        top = (self._rows + 1.0) ** power - 1
        rank = ((1 + uniform * top) ** (1 / power)).astype(np.uint64) - np.uint64(1)
        # Frequent ids are not neighbours, as in a real log.
        permuted: Words = np.minimum(rank, self._rows - np.uint64(1)) * _PRIME
        return permuted % self._rows

    def _logits(self, dense: Numbers, ids: Words) -> Numbers:
        effects = _normal(_hashed(self._effects, ids))
        measured: Numbers = self._weights @ dense
        products = (effects[::2] * effects[1::2]).sum(0)
        of_ids: Numbers = _EFFECT * effects.sum(0) + _PRODUCT * products
        return _MEAN + _MEASUREMENT * measured + of_ids


def _hashed(keys: Words, counter: Words) -> Words:
    """For each key the words that SplitMix64 has at these places of its sequence."""
    return _mixed(keys[:, None] + counter * _GOLDEN)


def _mixed(words: Words) -> Words:
    """The output function of SplitMix64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _uniform(words: Words) -> Numbers:
    """Numbers between 0 and 1, evenly distributed."""
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _normal(words: Words) -> Numbers:
    numbers: Numbers = torch.special.ndtri(torch.from_numpy(_uniform(words))).numpy()
    return numbers
