"""Batches of MovieLens-100K."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

BATCH = 1024
USERS, ITEMS, WIDTH = 944, 1683, 16
RATE = 0.01
# Steps that are timed together, as some contestants begin many at once.
TURN = 10

Ratings: TypeAlias = npt.NDArray[np.int64]


def load(file: str) -> Ratings:
    """Rows of user, item and rating, int64 (100000, 3), shuffled."""
    rows: Any = np.loadtxt(file, np.int64, skiprows=1, usecols=(0, 1, 2))
    return np.random.default_rng(0).permutation(rows)


def batches(ratings: Ratings) -> Iterator[Ratings]:
    """Endless batches: in each pass over the ratings, in another order."""
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(ratings))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            yield ratings[order[start : start + BATCH]]
