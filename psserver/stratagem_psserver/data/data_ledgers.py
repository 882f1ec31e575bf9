"""The ledgers of all datasets that scheduled functions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from stratagem_proto.errors import NotFoundError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_psserver.data.data_ledger import (
    DataLedger,
    Function,
    ledger_from_json,
    ledger_to_json,
)

MAX_LEDGERS = 10_000


def ledgers_from_json(facts: Mapping[str, Any]) -> list[DataLedger]:
    """Return the ledgers from what `DataLedgers.facts` returned."""
    return [ledger_from_json(name, one) for name, one in facts.items()]


class Opened(NamedTuple):
    """A pass that a coordinator begins or goes on with.

    Attributes:
        ledger: The ledger of the pass.
        number: The number of the pass.
        left: By earlier coordinator: the functions that have drawn batches and not ended, and the
            number of their batches of this pass.
    """

    ledger: DataLedger
    number: int
    left: Mapping[bytes, Mapping[int, int]]


class DataLedgers:
    """The ledgers of a server."""

    def __init__(self) -> None:
        self._ledgers: dict[str, DataLedger] = {}
        # The datasets and passes from which functions have drawn that have not ended.
        self._held: dict[Function, set[tuple[str, int]]] = {}

    def open(self, name: str, num_batches: int, seed: int, coordinator: bytes) -> Opened:
        """Begin a pass, or go on with one.

        Raises:
            InvalidNameError: The name is not valid.
            FailedPreconditionError: The dataset of that name has another number of batches.
            ResourceExhaustedError: There are too many ledgers.
        """
        check_name(name, "dataset")
        if name not in self._ledgers:
            self._require_room()
            self._ledgers[name] = DataLedger(name, num_batches, seed)
        ledger = self._ledgers[name]
        ledger.require_fit(num_batches)
        number, earlier = ledger.open(coordinator)
        holders = ledger.passes[number].holders
        left = {
            space: {
                function.number: holders[function]
                for function in sorted(self._held)
                if function.space == space
            }
            for space in sorted(earlier)
        }
        return Opened(ledger, number, left)

    def _require_room(self) -> None:
        if len(self._ledgers) >= MAX_LEDGERS:
            raise ResourceExhaustedError(
                f"there are {MAX_LEDGERS} datasets that are read exactly once, which "
                "is the most; make one dataset and take an iterator for each pass"
            )

    def draw(
        self, name: str, number: int, num_batches: int, function: Function, order: int = 0
    ) -> int | None:
        """Hand out a batch; see `DataLedger.draw`.

        Raises:
            NotFoundError: There is no such dataset, or no such pass.
            FailedPreconditionError: As for `DataLedger.draw` and `DataLedger.require_fit`.
        """
        if name not in self._ledgers:
            raise NotFoundError(
                f"there is no dataset {name!r} that is read exactly once; the server "
                "may have restarted without its state. Make a new iterator"
            )
        ledger = self._ledgers[name]
        ledger.require_fit(num_batches)
        batch = ledger.draw(number, function, order)
        if batch is not None:
            self._held.setdefault(function, set()).add((name, number))
        return batch

    def release_ended(self, has_ended: Callable[[Function], bool]) -> None:
        """Release the batches of functions that have ended."""
        for function in [one for one in self._held if has_ended(one)]:
            for name, number in self._held.pop(function):
                self._ledgers[name].release(number, function)

    def facts(self) -> dict[str, Any]:
        """Return all ledgers, as JSON."""
        return {name: ledger_to_json(ledger) for name, ledger in self._ledgers.items()}

    def restore(self, facts: dict[str, Any]) -> None:
        """Replace all ledgers by those of a checkpoint."""
        self.replace(ledgers_from_json(facts))

    def replace(self, ledgers: Iterable[DataLedger]) -> None:
        """Replace all ledgers by these."""
        self._ledgers = {ledger.name: ledger for ledger in ledgers}
        self._held = {}
        for name, number, function in self._holdings():
            self._held.setdefault(function, set()).add((name, number))

    def _holdings(self) -> Iterator[tuple[str, int, Function]]:
        for name, ledger in self._ledgers.items():
            for number, one in ledger.passes.items():
                yield from ((name, number, function) for function in one.holders)
