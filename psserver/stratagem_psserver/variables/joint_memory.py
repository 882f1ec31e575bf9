"""Memory that several variables share, each with a part of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

import torch

from stratagem_psserver.limits import VariableMemoryLimit

_NUMBERS = count()


class JointMemory:
    """One vector of memory whose parts are the values of several variables.

    It is freed when the last variable has released its part.

    Args:
        memory: The vector.
        names: The variables, in the order of their parts.
        memory_limit: Counts the parts that were released while other variables keep the memory. The
            other parts are counted with their variables.

    Attributes:
        memory: The vector.
        names: The variables that had a part at first.
    """

    def __init__(
        self, memory: torch.Tensor, names: Sequence[str], memory_limit: VariableMemoryLimit
    ) -> None:
        self.memory, self.names = memory, names
        self._memory_limit, self._members, self._unused = memory_limit, len(names), 0
        # Variables leave in several threads, each under its own lock.
        self._leaving = threading.Lock()
        # No variable has such a name.
        self._name = f"\0joint {next(_NUMBERS)}"

    @property
    def is_whole(self) -> bool:
        """Whether no variable has released its part."""
        return self._members == len(self.names)

    def release_part(self, nbytes: int) -> None:
        """Note that a variable has released its part, which has so many bytes."""
        with self._leaving:
            self._members -= 1
            self._unused = self._unused + nbytes if self._members else 0
            self._memory_limit.record(self._name, self._unused)
