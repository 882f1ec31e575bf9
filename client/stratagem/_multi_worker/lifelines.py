"""Whether the workers that an operation of gloo waits for are still there.

When a connection closes, gloo fails the operations that receive by it, but forgets what it was
still sending: an operation that only sends then waits until its time is over. So whoever waits
looks at the connections too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import torch
from torch import distributed

_FIRST_LOOK_SECONDS = 0.5

# Collective operations have no tags.
_FAREWELL, _LOOK = 1, 2
_AT_ONCE = timedelta(seconds=1)


class Messages(Protocol):
    """The methods of torch's process groups by which two workers talk."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> distributed.Work:
        """Send a tensor; raises RuntimeError if the connection is closed."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> distributed.Work:
        """Receive a tensor; raises RuntimeError if the connection is closed."""


class Lifelines:
    """The connections of a worker, by which those that leave in order say so.

    A worker that has done its part may end while others are still in the same operation, which it
    does not disturb.

    Attributes:
        last_operation: The number of the last operation that this worker has done its part of.

    Raises:
        RuntimeError: A worker has ended.
    """

    def __init__(self, group: Messages, others: Sequence[int]) -> None:
        """Begin to listen for farewells.

        Args:
            group: The connections.
            others: The ranks of the other workers.
        """
        self._group = group
        self._farewells = {rank: _Farewell(group, rank) for rank in others}
        self.last_operation = 0
        self._next_look = _FIRST_LOOK_SECONDS

    def look(self, operation: int, waited: float) -> None:
        """Look, from time to time, whether any worker left before it had done an operation.

        Args:
            operation: Its number.
            waited: The seconds that it has taken so far.

        Raises:
            RuntimeError: One did, and gloo's words for it.
        """
        if waited < self._next_look:
            return
        # Each look leaves a few bytes behind in gloo. In the life of a group there are only a few,
        # since no wait of a usual length comes to the next one.
        self._next_look = 2 * waited
        for rank, farewell in self._farewells.items():
            closed = self._closed(rank)
            if closed is not None and farewell.last_operation() < operation:
                raise closed

    def _closed(self, rank: int) -> RuntimeError | None:
        try:
            self._group.recv([torch.empty(1)], rank, _LOOK)
        except RuntimeError as closed:
            return closed
        return None

    def keep(self) -> None:
        """Have the connections last as long as the process, since a thread may wait in them.

        Whoever removed the group would wait for that thread, at the latest when the program ends.
        What listens for farewells lasts as long: gloo looks without a pause at one that arrives and
        that nobody takes, which costs a core.
        """
        for kept in (self._group, *self._farewells.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def leave(self) -> None:
        """Tell the others which operation was the last."""
        for rank in self._farewells:
            with suppress(RuntimeError):
                self._group.send([torch.tensor([self.last_operation])], rank, _FAREWELL)
        # Both keep the connections open.
        self._farewells.clear()
        del self._group


class _Farewell:
    """What a worker says when it leaves."""

    def __init__(self, group: Messages, rank: int) -> None:
        self._number = torch.tensor([-1])
        # It can only arrive if this worker was ready for it before.
        self._work = group.recv([self._number], rank, _FAREWELL)

    def last_operation(self) -> int:
        """Return the last operation of a worker whose connection is closed; -1 if it was lost."""
        if not self._work.is_completed():
            with suppress(RuntimeError):
                self._work.wait(_AT_ONCE)
        return int(self._number)
