"""Ledgers of datasets whose batches are each read once by scheduled functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stratagem_proto.errors import FailedPreconditionError, NotFoundError, ResourceExhaustedError
from stratagem_proto.protocol import check_name

# A program may abandon passes before their end; beyond this number the oldest is closed.
MAX_PASSES = 1_000


class Function(NamedTuple):
    """A function that a coordinator has scheduled by a number, whichever worker runs it."""

    space: bytes
    number: int


@dataclass
class Pass:
    """One pass over the data, in which each batch is handed out once.

    Attributes:
        owner: The coordinator whose functions draw batches.
        drawn: The number of batches that were handed out, in the order of their numbers.
        holders: The functions that have drawn batches and not ended, and the number of batches.
        order: A digest of the order in which a worker reads the batches; 0 while none has said it.
    """

    owner: bytes
    drawn: int = 0
    holders: Counter[Function] = field(default_factory=Counter)
    order: int = 0

    @property
    def spaces(self) -> set[bytes]:
        """The coordinators whose functions draw or have drawn batches."""
        return {self.owner, *(function.space for function in self.holders)}

    def inherited(self, renamed: Callable[[bytes], bytes], again: bool) -> Pass:
        """Return the pass for the next coordinator to go on with.

        Args:
            renamed: Returns a new name for a coordinator, whose functions can then draw no more.
            again: Whether functions that had not ended run again; otherwise their batches count as
                read.
        """
        holders = {
            Function(renamed(one.space), one.number): times
            for one, times in self.holders.items()
            if again
        }
        return Pass(renamed(self.owner), self.drawn, Counter(holders))


class DataLedger:
    """The passes over one dataset.

    Attributes:
        name: The name of the dataset.
        num_batches: The number of batches in a pass.
        seed: The seed by which workers shuffle.
        opened: The number of passes that were begun.
        passes: The passes that are not over, by number.
    """

    def __init__(self, name: str, num_batches: int, seed: int) -> None:
        self.name = name
        self.num_batches = num_batches
        self.seed = seed
        self.opened = 0
        self.passes: dict[int, Pass] = {}

    def open(self, coordinator: bytes) -> tuple[int, set[bytes]]:
        """Begin a pass, or go on with the last one if another coordinator left it unfinished.

        Returns:
            The number of the pass, and the coordinators that it had before.
        """
        number = self.opened - 1
        last = self.passes.get(number)
        if last is not None and last.owner != coordinator and not self._is_over(last):
            spaces = last.spaces
            last.owner = coordinator
            return number, spaces - {coordinator}
        self.passes[self.opened] = Pass(coordinator)
        self.opened += 1
        if len(self.passes) > MAX_PASSES:
            del self.passes[min(self.passes)]
        return self.opened - 1, set()

    def draw(self, number: int, function: Function, order: int = 0) -> int | None:
        """Hand out the next batch of a pass; return None if none is left.

        Args:
            number: The pass.
            function: Which function reads the batch.
            order: A digest of the order in which its worker reads the pass; 0 is any.

        Raises:
            NotFoundError: The pass was never begun.
            FailedPreconditionError: The function belongs to an earlier coordinator and has read no
                batch of the pass, or another worker reads the pass in another order.
        """
        if number >= self.opened:
            raise NotFoundError(
                f"{self.name!r} has no pass {number}; the server may have restarted "
                "without its state. Make a new iterator"
            )
        found = self.passes.get(number)
        if found is None or found.drawn == self.num_batches:
            return None
        if function.space != found.owner and function not in found.holders:
            raise FailedPreconditionError(
                f"another coordinator goes on with pass {number} of {self.name!r}, or "
                "a checkpoint was restored meanwhile, and function "
                f"{function.number} of the earlier one has read nothing of it yet; "
                "what it was to read goes to others. Make a new iterator"
            )
        if order and found.order not in (0, order):
            raise FailedPreconditionError(
                f"workers would read pass {number} of {self.name!r} in different orders, so that "
                "some rows were read twice and others never; let its sampler draw from the "
                "generators of torch, NumPy or Python, which are seeded alike on all workers for "
                "each pass, and keep no state of its own"
            )
        found.order = order or found.order
        found.holders[function] += 1
        found.drawn += 1
        return found.drawn - 1

    def release(self, number: int, function: Function) -> None:
        """Note that a function that drew batches of a pass has ended."""
        found = self.passes.get(number)
        if found is not None:
            found.holders.pop(function, None)
            if self._is_over(found):
                del self.passes[number]

    def require_fit(self, num_batches: int) -> None:
        """Raise FailedPreconditionError if a request's data have another number of batches."""
        if num_batches != self.num_batches:
            raise FailedPreconditionError(
                f"the data of {self.name!r} have {num_batches} batches here, but had "
                f"{self.num_batches} when its first pass began; read the same data in "
                "the same batches everywhere, or give other data another name"
            )

    def leave_to_next(self, renamed: Callable[[bytes], bytes], again: bool) -> None:
        """Let the next coordinator go on with all passes; see `Pass.inherited`."""
        passes = {n: one.inherited(renamed, again) for n, one in self.passes.items()}
        self.passes = {n: one for n, one in passes.items() if not self._is_over(one)}

    def _is_over(self, one: Pass) -> bool:
        return one.drawn == self.num_batches and not one.holders

    def facts(self) -> dict[str, Any]:
        """Return everything but the name, as JSON."""
        return {
            "batches": self.num_batches,
            "seed": self.seed,
            "opened": self.opened,
            "passes": {
                number: {
                    "owner": one.owner.hex(),
                    "drawn": one.drawn,
                    "holders": [
                        [function.space.hex(), function.number, times]
                        for function, times in one.holders.items()
                    ],
                }
                for number, one in self.passes.items()
            },
        }

    @classmethod
    def from_facts(cls, name: str, facts: Mapping[str, Any]) -> DataLedger:
        ledger = cls(name, facts["batches"], facts["seed"])
        ledger.opened = facts["opened"]
        for number, one in facts["passes"].items():
            holders = {
                Function(bytes.fromhex(space), function): times
                for space, function, times in one["holders"]
            }
            restored = Pass(bytes.fromhex(one["owner"]), one["drawn"], Counter(holders))
            ledger.passes[int(number)] = restored
        return ledger


MAX_LEDGERS = 10_000


def ledgers_from_json(facts: Mapping[str, Any]) -> list[DataLedger]:
    """Return the ledgers from what `DataLedgers.facts` returned."""
    return [DataLedger.from_facts(name, one) for name, one in facts.items()]


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
            if len(self._ledgers) >= MAX_LEDGERS:
                raise ResourceExhaustedError(
                    f"there are {MAX_LEDGERS} datasets that are read exactly once, which "
                    "is the most; make one dataset and take an iterator for each pass"
                )
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

    def draw(
        self, name: str, number: int, num_batches: int, function: Function, order: int = 0
    ) -> int | None:
        """Hand out a batch; raise as `DataLedger.draw` and `require_fit`, or NotFoundError."""
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
        return {name: ledger.facts() for name, ledger in self._ledgers.items()}

    def restore(self, facts: dict[str, Any]) -> None:
        """Replace all ledgers by those of a checkpoint."""
        self.replace(ledgers_from_json(facts))

    def replace(self, ledgers: Iterable[DataLedger]) -> None:
        """Replace all ledgers by these."""
        self._ledgers = {ledger.name: ledger for ledger in ledgers}
        self._held = {}
        for name, ledger in self._ledgers.items():
            for number, one in ledger.passes.items():
                for function in one.holders:
                    self._held.setdefault(function, set()).add((name, number))
