"""What strategies give to replicas of a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def steps(strategy: Any, distributed: Iterable[Any]) -> list[Any]:
    """Return what each replica gets in each step."""
    return [list(strategy.experimental_local_results(each)) for each in distributed]


def split(strategy: Any, dataset: Any, options: Any = None) -> list[Any]:
    return steps(strategy, strategy.experimental_distribute_dataset(dataset, options))


def dealt(strategy: Any, dataset: Any, options: Any = None) -> list[Any]:
    return steps(
        strategy,
        strategy.distribute_datasets_from_function(lambda _: dataset, options),
    )
