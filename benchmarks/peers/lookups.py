"""How contestants of any kind are asked for rows of a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from benchmarks.peers import timing
from benchmarks.peers.row_batches import Indices, batches

KINDS = ("uniform", "zipf")

Batch = TypeVar("Batch", contravariant=True)


class Table(Protocol[Batch]):
    """A table on a server, with Adagrad. Rows may be asked for more than once."""

    def pull(self, batch: Batch, /) -> object:
        """Gets these rows."""

    def push(self, batch: Batch, /) -> object:
        """Sends a gradient for each of them, and returns when Adagrad has stepped."""


def answers(
    table: Table[Batch], prepared: Callable[[Indices], Batch]
) -> Callable[[str, float], float]:
    """Answers for "pull" and "push" of batches, such as "pull uniform".

    Args:
        table: Of whose requests the time counts.
        prepared: Makes of indices what the table is given; its time does not count.
    """
    all_batches = {kind: itertools.cycle([*map(prepared, batches(kind))]) for kind in KINDS}
    requests: Mapping[str, Callable[[Batch], object]] = {"pull": table.pull, "push": table.push}

    def answer(question: str, seconds: float) -> float:
        direction, kind = question.split()
        request, drawn = requests[direction], all_batches[kind]
        return timing.median(lambda: request(next(drawn)), seconds)

    return answer
