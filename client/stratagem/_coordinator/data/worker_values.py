"""What workers keep for a coordinator: results, and values of their own."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import deque
from typing import Protocol

from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._shipping.kinds import RemoteObject
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._shipping.parcel import Definition, Parcel
from stratagem_proto.v1.worker_pb2 import ResultPlace


class Keeper(Protocol):
    """A worker that keeps things."""

    @property
    def there(self) -> bool:
        """Whether it was not lost yet."""

    def define(self, definition: Definition) -> None:
        """Let it make an object when it is first needed."""

    def take(self, handle: int, place: ResultPlace) -> None:
        """Let it copy the result of a closure from the worker that has it."""

    def place(self, closure: int) -> ResultPlace:
        """Return where others can copy a result from that stays on this worker."""

    def build(self, handle: int, call: Parcel) -> None:
        """Let it keep what a call returns, before it runs what is sent later."""


class WorkerValue(RemoteObject):
    """Stands for what each worker keeps under a handle while this object lives."""

    def __init__(self, worker_values: WorkerValues) -> None:
        self._worker_values = worker_values
        self._handle: int | None = None

    def _shipped_handle(self) -> int:
        if self._handle is None:
            self._handle = self._worker_values.admit(self)
        return self._handle

    def _shipped_subject(self) -> WorkerValue:
        return self

    @abstractmethod
    def _provide(self, keeper: Keeper) -> None:
        """Give a worker what it has to keep."""


class WorkerValues:
    """The handles of what the workers keep.

    Attributes:
        closure_pickler: Makes what is sent to them.
        outcomes: How outcomes of functions travel.
    """

    def __init__(self, closure_pickler: ClosurePickler, outcomes: OutcomeForm) -> None:
        self.closure_pickler: ClosurePickler = closure_pickler
        self.outcomes: OutcomeForm = outcomes
        # Filled by the garbage collector, in any thread and with any lock held.
        self._gone: deque[int] = deque()

    def admit(self, owner: WorkerValue) -> int:
        """Return a handle that is valid while its owner lives."""
        handle = self.closure_pickler.new_handle()
        weakref.finalize(owner, self._gone.append, handle).atexit = False
        return handle

    def gone(self) -> list[int]:
        """Return the handles that nothing names any more, since the last call."""
        released = [self._gone.popleft() for _ in range(len(self._gone))]
        return released + self.closure_pickler.gone()
