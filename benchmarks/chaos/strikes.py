"""What a fault is: it happens to somebody, and is undone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Repair: TypeAlias = Callable[[threading.Event], None]
"""Undoes a fault after its time, or as soon as the event is set, and waits until all is well."""


class Strike(NamedTuple):
    """A fault that has just happened.

    Attributes:
        victim: To whom, for people.
        repair: What undoes it.
    """

    victim: str
    repair: Repair


class Kind(Protocol):
    """A kind of fault.

    Attributes:
        name: What people call it.
        tasks: The tasks to which it can happen. A task has one fault at a time.
    """

    name: str
    tasks: Sequence[str]

    def strike(self, task: str, chance: random.Random) -> Strike | None:
        """Let it happen to a task; None if that cannot be at present."""
