"""Memory that several variables have together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

import torch

from stratagem_psserver.limits.variable_memory_limit import VariableMemoryLimit

_NUMBERS = count()


class JointMemory:
    """Some memory, which is there until no variable has a part of it.

    Args:
        memory: All of it.
        names: The variables that have a part of it, in the order of their parts.
        room: Where variables are counted, each with its part. The parts of those that are gone
            count here for as long as the others keep them.

    Attributes:
        memory: All of it.
        names: The variables that had a part of it at first.
    """

    def __init__(
        self, memory: torch.Tensor, names: Sequence[str], room: VariableMemoryLimit
    ) -> None:
        self.memory, self.names = memory, names
        self._room, self._members, self._unused = room, len(names), 0
        # Variables leave in several threads, each under its own lock.
        self._leaving = threading.Lock()
        # No variable has such a name.
        self._name = f"\0joint {next(_NUMBERS)}"

    @property
    def is_whole(self) -> bool:
        """Whether all parts of it are those of variables."""
        return self._members == len(self.names)

    def give_part_back(self, nbytes: int) -> None:
        """Note that a variable has no more use for its part."""
        with self._leaving:
            self._members -= 1
            self._unused = self._unused + nbytes if self._members else 0
            self._room.record(self._name, self._unused)
