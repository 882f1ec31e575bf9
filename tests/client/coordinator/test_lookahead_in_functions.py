"""Rows that scheduled functions ask for before the steps that look them up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import stratagem
from stratagem import DistributedOptimizer, InvalidArgumentError
from tests.client.coordinator.coordination import Coordination, coordinating


def train_some(here: Coordination, dataset_fn: Any) -> tuple[Any, Any, Any]:
    """An iterator of the worker, a function that trains on so many of its batches, the table."""
    strategy = here.strategy
    with strategy.scope():
        table = stratagem.nn.Embedding(100, 2)
        torch.nn.init.zeros_(table.weight)
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        (-table(ids)).sum().backward()
        optimizer.step()

    def train(iterator: Any, count: int) -> list[int]:
        here_strategy = stratagem.get_strategy()
        ahead = here_strategy.lookahead(iterator, lambda ids: [(table, ids)])
        given = []
        for ids in itertools.islice(ahead, count):
            here_strategy.run(step, args=(ids,))
            given.append(int(ids))
        return given

    iterator = iter(here.coordinator.create_per_worker_dataset(dataset_fn))
    return iterator, train, table


def test_what_a_function_has_read_ahead_the_next_one_trains() -> None:
    with coordinating(1, 1) as here:
        strategy = here.strategy

        def made() -> Any:
            return strategy.experimental_distribute_dataset([torch.tensor([n]) for n in range(6)])

        iterator, train, table = train_some(here, made)
        first = here.coordinator.schedule(train, args=(iterator, 2)).get()
        second = here.coordinator.schedule(train, args=(iterator, 4)).get()
        assert (first, second) == ([0, 1], [2, 3, 4, 5])
        assert table(torch.arange(7)).tolist() == [[1.0, 1.0]] * 6 + [[0.0, 0.0]]


def test_an_iterator_that_would_lose_what_was_read_ahead_is_refused() -> None:
    with coordinating(1, 1) as here:
        iterator, train, _ = train_some(here, lambda: [torch.tensor([n]) for n in range(6)])
        here.coordinator.schedule(train, args=(iterator, 2))
        with pytest.raises(InvalidArgumentError, match=r"would be lost when the function ends"):
            here.coordinator.join()
