"""What the replicas of a worker get in each step, one round after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stratagem._input.reader import Reader, State
from stratagem._input.splitting import split, without_rows


@dataclass(frozen=True)
class Round:
    """The input of one step.

    Attributes:
        parts: A nest for each replica of this worker, in replica order.
        states: Where each reader stands after it.
    """

    parts: Sequence[Any]
    states: Sequence[State]


class Dealing(Protocol):
    """How elements of datasets become rounds."""

    def parts(self, readers: Sequence[Iterator[Any]]) -> Sequence[Any]:
        """Read what a round needs and return the part of each replica.

        Raises:
            StopIteration: There is no further round.
        """

    def steps(self, lengths: Sequence[int]) -> int:
        """Return the number of rounds in datasets of these lengths."""


@dataclass(frozen=True)
class SplitBatches:
    """Each element is a batch for all replicas.

    Spec: INP-1, INP-10 to INP-13, INP-27.
    """

    replicas: int

    def parts(self, readers: Sequence[Iterator[Any]]) -> Sequence[Any]:
        """Split the next element of the only reader."""
        element = next(readers[0])
        return [element] if self.replicas == 1 else split(element, self.replicas)

    def steps(self, lengths: Sequence[int]) -> int:
        """One for each element."""
        return lengths[0]


_MISSING = object()


@dataclass(frozen=True)
class DealElements:
    """Each element is for one replica.

    The replicas read in turn from one reader, or each from its own. In the last
    round those without data get tensors with 0 rows.

    Attributes:
        replicas: How many there are.
        whole_rounds: Drop a last round that has not an element for each of them.

    Spec: INP-2, INP-6, INP-28 to INP-30b, INP-35.
    """

    replicas: int
    whole_rounds: bool = False

    def parts(self, readers: Sequence[Iterator[Any]]) -> Sequence[Any]:
        """Take one element for each replica."""
        turns = [readers[index % len(readers)] for index in range(self.replicas)]
        elements = [next(reader, _MISSING) for reader in turns]
        present = [element for element in elements if element is not _MISSING]
        if len(present) < (self.replicas if self.whole_rounds else 1):
            raise StopIteration
        return [
            without_rows(present[0]) if element is _MISSING else element
            for element in elements
        ]

    def steps(self, lengths: Sequence[int]) -> int:
        """Enough for the longest dataset, or for as many as are whole."""
        if len(lengths) > 1:
            return min(lengths) if self.whole_rounds else max(lengths)
        rounded_up = 0 if self.whole_rounds else self.replicas - 1
        return (lengths[0] + rounded_up) // self.replicas


class Rounds(Iterator[Round]):
    """The rounds that `dealing` makes of what `readers` read."""

    def __init__(self, readers: Sequence[Reader], dealing: Dealing) -> None:
        self._readers = readers
        self._dealing = dealing

    def __next__(self) -> Round:
        parts = self._dealing.parts(self._readers)
        return Round(parts, [reader.state_dict() for reader in self._readers])
