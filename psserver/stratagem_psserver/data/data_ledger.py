"""Which batches of data were handed out, and to which functions of coordinators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stratagem_proto.errors import FailedPreconditionError, NotFoundError

# A program may leave each pass before its end; the oldest that was left is closed.
MAX_PASSES = 1_000


class Function(NamedTuple):
    """A function that a coordinator has run, however often.

    Attributes:
        space: The coordinator.
        number: Its number there.
    """

    space: bytes
    number: int


@dataclass
class Pass:
    """One pass over the data, in which each batch is handed out once.

    Attributes:
        owner: The coordinator whose functions draw.
        drawn: How many batches were handed out; they go in the order of their numbers.
        holders: The functions that have drawn and not ended, and how often they have.
    """

    owner: bytes
    drawn: int = 0
    holders: Counter[Function] = field(default_factory=Counter)

    @property
    def spaces(self) -> set[bytes]:
        """The coordinators of which functions draw or have drawn."""
        return {self.owner, *(function.space for function in self.holders)}

    def given_up(self, renamed: Callable[[bytes], bytes], again: bool) -> Pass:
        """The pass as of coordinators that are gone, for the next one to go on with.

        Args:
            renamed: What to call them.
            again: Whether functions that had not ended run again; otherwise what they have drawn
                counts as read.
        """
        holders = {
            Function(renamed(one.space), one.number): times
            for one, times in self.holders.items()
            if again
        }
        return Pass(renamed(self.owner), self.drawn, Counter(holders))

    def admits(self, function: Function) -> bool:
        """Whether a function may draw, or is one of a coordinator that is gone."""
        return function.space == self.owner or function in self.holders


class DataLedger:
    """The passes over some data.

    Attributes:
        name: Its name.
        num_batches: How many batches there are in a pass.
        seed: By which workers shuffle.
        opened: How many passes were begun.
        passes: Those that are not over, by number.
    """

    def __init__(self, name: str, num_batches: int, seed: int) -> None:
        self.name = name
        self.num_batches = num_batches
        self.seed = seed
        self.opened = 0
        self.passes: dict[int, Pass] = {}

    def open(self, coordinator: bytes) -> tuple[int, set[bytes]]:
        """Begin a pass; another coordinator than before goes on with the last one.

        Returns:
            The number of the pass, and the coordinators that had it before.
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

    def draw(self, number: int, function: Function) -> int | None:
        """Hand out the next batch of a pass; None if there is none left.

        Raises:
            NotFoundError: There was no such pass.
            FailedPreconditionError: The function is one of a coordinator that is gone, and no other
                goes on with it.
        """
        found = self._find(number)
        if found is None or found.drawn == self.num_batches:
            return None
        if not found.admits(function):
            raise FailedPreconditionError(
                f"another coordinator goes on with pass {number} of {self.name!r}, or "
                "a checkpoint was restored meanwhile, and function "
                f"{function.number} of the earlier one has read nothing of it yet; "
                "what it was to read goes to others. Make a new iterator"
            )
        found.holders[function] += 1
        found.drawn += 1
        return found.drawn - 1

    def _find(self, number: int) -> Pass | None:
        if number >= self.opened:
            raise NotFoundError(
                f"{self.name!r} has no pass {number}; the server may have restarted "
                "without its state. Make a new iterator"
            )
        return self.passes.get(number)

    def release(self, number: int, function: Function) -> None:
        """Note that a function that has drawn in a pass has ended."""
        found = self.passes.get(number)
        if found is not None:
            found.holders.pop(function, None)
            if self._is_over(found):
                del self.passes[number]

    def require_fit(self, num_batches: int) -> None:
        """Check that somebody means the same data.

        Raises:
            FailedPreconditionError: They have another number of batches.
        """
        if num_batches != self.num_batches:
            raise FailedPreconditionError(
                f"the data of {self.name!r} have {num_batches} batches here, but had "
                f"{self.num_batches} when its first pass began; read the same data in "
                "the same batches everywhere, or give other data another name"
            )

    def give_up(self, renamed: Callable[[bytes], bytes], again: bool) -> None:
        """Let whoever comes next go on, as of `Pass.given_up`."""
        passes = {n: one.given_up(renamed, again) for n, one in self.passes.items()}
        self.passes = {n: one for n, one in passes.items() if not self._is_over(one)}

    def _is_over(self, one: Pass) -> bool:
        return one.drawn == self.num_batches and not one.holders


def ledger_to_json(ledger: DataLedger) -> dict[str, Any]:
    """Return all that there is of a ledger but its name, for JSON."""
    return {
        "batches": ledger.num_batches,
        "seed": ledger.seed,
        "opened": ledger.opened,
        "passes": {
            number: {
                "owner": one.owner.hex(),
                "drawn": one.drawn,
                "holders": [
                    [function.space.hex(), function.number, times]
                    for function, times in one.holders.items()
                ],
            }
            for number, one in ledger.passes.items()
        },
    }


def ledger_from_json(name: str, item: dict[str, Any]) -> DataLedger:
    """Return the ledger of which `ledger_to_json` gave this."""
    ledger = DataLedger(name, item["batches"], item["seed"])
    ledger.opened = item["opened"]
    for number, one in item["passes"].items():
        holders = Counter(
            {
                Function(bytes.fromhex(space), function): times
                for space, function, times in one["holders"]
            }
        )
        restored = Pass(bytes.fromhex(one["owner"]), one["drawn"], holders)
        ledger.passes[int(number)] = restored
    return ledger
