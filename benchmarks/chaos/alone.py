"""The same training in one process, to which nothing happens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from examples import movielens
from examples.movielens import BATCH, HELD_OUT, WEIGHT_DECAY

# A longer training comes to the same error.
_MOST_PASSES = 60


def error_alone(rates: Sequence[float]) -> float:
    """Return the error of the demo's model, trained by one process.

    Args:
        rates: The learning rate of each pass over the ratings.
    """
    torch.manual_seed(0)
    ratings = movielens.load_ratings()
    rest = ratings[HELD_OUT:]
    model = movielens.Recommender()
    adamw = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY)
    for rate in evenly(rates, _MOST_PASSES):
        adamw.param_groups[0]["lr"] = rate
        for batch in torch.randperm(len(rest)).split(BATCH):
            user, item, rating = rest[batch].T
            adamw.zero_grad()
            functional.mse_loss(model.train()(user, item), rating.float()).backward()
            adamw.step()
    return movielens.rmse(model, ratings[:HELD_OUT])


def evenly(rates: Sequence[float], most: int) -> list[float]:
    """Return the rates, or so many of them that are spread from the first to the last."""
    number = min(len(rates), most)
    return [rates[int(each)] for each in np.linspace(0, len(rates) - 1, number)]
