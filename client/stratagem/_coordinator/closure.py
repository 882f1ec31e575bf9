"""A scheduled function on its way, and what it returns."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stratagem._coordinator.data.per_worker import PerWorkerValues
from stratagem._coordinator.data.worker_values import Keeper, WorkerValue, WorkerValues
from stratagem._shipping.parcel import Definition, Parcel
from stratagem_proto.errors import CancelledError
from stratagem_proto.v1.session_pb2 import ClosureIdentity


class Latch:
    """An event that is set once, under a lock of its user.

    Each closure has one, and few are waited for. An event takes much longer to make and to
    set, which a closure that does nothing would feel.
    """

    __slots__ = ("_closed", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Let it have happened; again does nothing."""
        if not self._is_set:
            self._is_set = True
            self._closed.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has happened, or for so many seconds; return whether it has."""
        if self._closed.acquire(timeout=-1 if seconds is None else seconds):
            # Lets the next one in that waits.
            self._closed.release()
            return True
        return False


class Result(WorkerValue):
    """The result of a closure: to come, here, or on the worker that ran it.

    A large one stays on its worker. It is copied here if the program has its `RemoteValue`, so that
    it outlives the worker; other workers copy it from there. Without a copy here, the closure runs
    again if the worker is lost. Spec: RMV-3.

    Changed under the lock of `Dispatch` alone.

    Attributes:
        closure: Number of the closure.
        owner: Returns the program's `RemoteValue`, None once there is none.
        payload: The result as it travelled, if it is here.
        sender: The worker that returned it, once it is here.
        error: Why there is none, if the closure failed.
        aborted: Whether that is because the coordinator was closed before it ended.
        ended: Set once there is either.
        users: How many closures take it that have not ended.
        keeper: The worker on which it stays, or stayed before that was lost.
        direct: Whether workers can copy it from each other.
        copying: Whether it is on its way here.
    """

    def __init__(
        self, worker_values: WorkerValues, closure: int, await_end: Callable[[Result], None]
    ) -> None:
        """Expect the result of the closure of a number; `await_end` returns once it has ended."""
        super().__init__(worker_values)
        self._await_end = await_end
        self.closure = closure
        self.owner: weakref.ref[object] | None = None
        self.payload: bytes | None = None
        self.sender: str = ""
        self.error: BaseException | None = None
        self.aborted: bool = False
        self.ended: Latch = Latch()
        self.users = 0
        self.keeper: Keeper | None = None
        self.direct: bool = True
        self.copying: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the program may ask for it."""
        return self.owner is not None and self.owner() is not None

    @property
    def needed(self) -> bool:
        """Whether anybody may ask for it. Spec: RMV-5."""
        return self.wanted or self.users > 0

    @property
    def here(self) -> bool:
        """Whether it is here, or on its way."""
        return self.payload is not None or self.copying

    @property
    def source(self) -> Keeper | None:
        """The worker from which others can copy it."""
        there = self.keeper is not None and self.keeper.there
        return self.keeper if there and self.direct else None

    @property
    def met(self) -> bool:
        """Whether closures can have it."""
        return self.payload is not None or self.source is not None

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self.ended.is_set():
            self._await_end(self)

    def stay(self, keeper: Keeper) -> None:
        """Take note of the worker that has it."""
        self.keeper, self.direct, self.copying = keeper, True, False

    def succeed(self, payload: bytes, sender: str) -> None:
        """Take in what a worker returned."""
        self.payload, self.sender = payload, sender
        self.ended.set()

    def load(self) -> Any:
        """Return the value that is here; raise `StratagemError` if its worker sent no value."""
        assert self.payload is not None, "the closure has not returned"
        return self._worker_values.outcomes.load(self.payload, self.sender)

    def fail(self, error: BaseException) -> None:
        """Take note that there is none."""
        self.error = error
        self.ended.set()

    def abort(self) -> None:
        """Take note that there never will be one. Spec: RMV-4."""
        self.aborted = True
        self.fail(
            CancelledError(
                "The value was aborted. Please reschedule its function: its "
                "coordinator was closed before the function ended"
            )
        )

    def _provide(self, keeper: Keeper) -> None:
        handle, source = self._shipped_handle(), self.source
        if source is not None:
            keeper.take(handle, source.place(self.closure))
            return
        assert self.payload is not None, "a closure waits for its inputs"
        kind = self._worker_values.outcomes.kind.name
        keeper.define(Definition.of_result(handle, self.payload, kind))


def results_among(remote_objects: Iterable[object]) -> list[Result]:
    """Return the results that are needed where something is loaded."""
    found = []
    for one in remote_objects:
        if isinstance(one, Result):
            found.append(one)
        elif isinstance(one, PerWorkerValues):
            found += results_among(one._parcel.remote_objects.values())
    return found


@dataclass(frozen=True)
class Closure:
    """A function with its arguments, until it ends.

    Servers know by `identity` that they have been asked before. Errors call it by `name`.
    """

    number: int
    identity: ClosureIdentity
    name: str
    parcel: Parcel
    result: Result

    @cached_property
    def inputs(self) -> list[Result]:
        """The results of other closures that it takes."""
        return results_among(self.parcel.remote_objects.values())

    @property
    def unmet(self) -> list[int]:
        """The closures for whose results it has to wait."""
        return [one.closure for one in self.inputs if not one.met]

    @property
    def failure(self) -> BaseException | None:
        """Why it will never have an input, if that is so."""
        for one in self.inputs:
            if one.error is not None:
                return one.error
        return None
