"""What a worker does to read data that it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from stratagem._coordinator.accounts.data_account import BatchKeeper
from stratagem._input.numbered_batches import NumberedBatches, Order
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.requests.draws import DataPass


class SharedReader(Iterator[Any]):
    """One pass over data, of which the function that runs reads the next batch.

    Args:
        strategy: The worker's.
        dataset: The data.
        opened: The pass.
    """

    def __init__(
        self, strategy: ParameterServerStrategy, dataset: Any, opened: DataPass
    ) -> None:
        self._keeper = BatchKeeper.of(strategy)
        self._batches = NumberedBatches(dataset)
        self._pass = opened

    def __next__(self) -> Any:
        number = self._keeper.draw(self._pass, len(self._batches))
        if number is None:
            raise StopIteration
        return self._batches.read(self._order[number])

    @cached_property
    def _order(self) -> Order:
        return self._batches.order(self._pass.seed, self._pass.number)
