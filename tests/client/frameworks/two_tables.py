"""Two tables of TorchRec, and ids to look up in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

KEYS = ["user", "seen", "liked"]
ROWS = 12


def two_tables(config: Callable[..., Any], dim_of_users: int, **of_films: Any) -> list[Any]:
    """Two tables, one of which has two features, one of which has two tables."""
    films = {"name": "films", "embedding_dim": 4, "num_embeddings": ROWS, **of_films}
    users = {"name": "users", "embedding_dim": dim_of_users, "num_embeddings": ROWS}
    return [
        config(**users, feature_names=["user", "seen"]),
        config(**films, feature_names=["seen", "liked"]),
    ]


def features(weights: torch.Tensor | None = None, largest: int = ROWS - 1) -> Any:
    """Three bags for each of the keys: empty ones, and ids that are there several times."""
    from torchrec import KeyedJaggedTensor

    return KeyedJaggedTensor(
        keys=KEYS,
        values=torch.tensor([3, 1, 3, 0, largest, 7, 7, 7, 2]),
        lengths=torch.tensor([2, 0, 1, 0, 3, 0, 0, 2, 1]),
        weights=weights,
    )
