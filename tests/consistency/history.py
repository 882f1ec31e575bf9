"""Histories: what workers did and saw, in the order in which it happened.

Each worker counts its updates in an element of its own, and writes there the number of the step
that the latest one is of. What a read returns so tells which updates it contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stratagem.consistency import Consistency

# How many updates of a worker a read contains, and which step the last of them is of.
Seen: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Leave:
    """A worker may read for a step, and take it."""

    worker: int
    step: int
    consistency: Consistency


@dataclass(frozen=True)
class Reading:
    """A worker sends a read, for the step that it had leave for last.

    Attributes:
        worker: Which worker.
        read: Number of the read.
        behind: The step of its own update that the read is sent with or after, and that is the last
            of its own which it contains; None where that is not known.
    """

    worker: int
    read: int
    behind: int | None = None


@dataclass(frozen=True)
class Read:
    """A read is answered."""

    worker: int
    read: int
    seen: Sequence[Seen]


@dataclass(frozen=True)
class Sent:
    """A worker begins to send the update of a step."""

    worker: int
    step: int


@dataclass(frozen=True)
class Answered:
    """All servers have the update, or have said that it does not count."""

    worker: int
    step: int
    counted: bool = True


@dataclass(frozen=True)
class Gone:
    """A worker's session has ended; its next event is that it is back."""

    worker: int


Event: TypeAlias = Leave | Reading | Read | Sent | Answered | Gone
