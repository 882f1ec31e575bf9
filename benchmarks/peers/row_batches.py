"""Which rows of a table batches look up, the same for all contestants."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ROWS, WIDTH, LOOKUPS = 1_000_000, 16, 4096
BATCHES = 16
_EXPONENT = 1.05

Indices: TypeAlias = npt.NDArray[np.int64]


def batches(kind: str) -> list[Indices]:
    """Indices of each batch, which repeat: "uniform", or "zipf" with exponent 1.05."""
    random = np.random.default_rng(0)
    probabilities = _zipf() if kind == "zipf" else None
    # Where the frequent rows are says nothing of how frequent they are.
    places = random.permutation(ROWS)
    drawn: Any = random.choice(ROWS, (BATCHES, LOOKUPS), p=probabilities)
    return [places[batch] for batch in drawn]


def _zipf() -> npt.NDArray[np.float64]:
    weights: Any = np.arange(1, ROWS + 1) ** -_EXPONENT
    return np.asarray(weights / weights.sum(), np.float64)
