"""A scheduled function on its way, what it returns, and what becomes of that."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch

from stratagem._coordinator.per_worker import Keeper, PerWorkerValues, WorkerValue, WorkerValues
from stratagem._core.distributed_values import DistributedValues, Mirrored
from stratagem._core.nests import map_leaves
from stratagem._core.tensors import as_array
from stratagem._shipping.kinds import Definition, Parcel, RemoteObject
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
        if not self.ended.is_set():
            self._await_end(self)

    def stay(self, keeper: Keeper) -> None:
        self.keeper, self.direct, self.copying = keeper, True, False

    def succeed(self, payload: bytes, sender: str) -> None:
        self.payload, self.sender = payload, sender
        self.ended.set()

    def load(self) -> Any:
        """Return the value that is here; raise `StratagemError` if its worker sent no value."""
        assert self.payload is not None, "the closure has not returned"
        return self._worker_values.outcomes.load(self.payload, self.sender)

    def fail(self, error: BaseException) -> None:
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


class RemoteValueStatus(Enum):
    """Where a `RemoteValue` stands. Spec: RMV-4."""

    NOT_READY = "NOT_READY"
    """Its function has not ended, or its result is on its way."""
    ABORTED = "ABORTED"
    """Its coordinator was closed before."""
    READY = "READY"
    """Its function has returned or failed."""


class RemoteValue(RemoteObject):
    """What a function that runs on some worker returns.

    `ClusterCoordinator.schedule` gives one at once. It can be an argument of further functions,
    which then run once it is there; a large one they get from the worker that has it. While this
    object lives, what the function returned is copied here, whatever becomes of the worker; once it
    is dropped, nothing large is.

    Spec: RMV-1 to RMV-5.

    Args:
        result: What the function will have returned.
        refresh: Called when it is first asked for and there.
    """

    def __init__(self, result: Result, refresh: Callable[[], None]) -> None:
        self._result, self._refresh = result, refresh
        self._loaded: tuple[Any] | None = None
        result.owner = weakref.ref(self)

    @property
    def status(self) -> RemoteValueStatus:
        """Whether `fetch` and `get` would wait. Spec: RMV-4."""
        if not self._result.ended.is_set():
            return RemoteValueStatus.NOT_READY
        if self._result.aborted:
            return RemoteValueStatus.ABORTED
        return RemoteValueStatus.READY

    def fetch(self) -> Any:
        """Wait for the value and return it with arrays in place of tensors.

        If it was the last of what is scheduled, the program's parameters are then as of `join`.

        Returns:
            What the function returned: tensors as NumPy arrays, those without dimensions as NumPy
            numbers, distributed values as tuples of these, other leaves as they are. What NumPy has
            no type for, such as bfloat16, is wider: float32. `get` gives it as it is.

        Raises:
            CancelledError: The function was cancelled, or the coordinator closed.
            UnavailableError: The parameters could not be read. The value is there.
            Exception: What the function raised, each time. Spec: ERR-8.

        Spec: RMV-1.
        """
        return map_leaves(_as_array, self.get())

    def get(self) -> Any:
        """Wait for the value and return it, with tensors on this machine's CPU.

        If it was the last of what is scheduled, the program's parameters are then as of `join`.

        Returns:
            What the function returned; distributed values as tuples.

        Raises:
            CancelledError: The function was cancelled, or the coordinator closed.
            UnavailableError: The parameters could not be read. The value is there.
            Exception: What the function raised, each time. Spec: ERR-8.

        Spec: RMV-2.
        """
        self._result.wait()
        if self._result.error is not None:
            raise self._result.error
        if self._loaded is None:
            self._loaded = (map_leaves(_undistributed, self._result.load()),)
            self._refresh()
        return self._loaded[0]

    def _shipped_handle(self) -> int:
        return self._result._shipped_handle()

    def _shipped_subject(self) -> Result:
        return self._result

    def __repr__(self) -> str:
        return f"<RemoteValue, {self.status.name}>"


def fetched(nest: Any) -> Any:
    return map_leaves(_fetched, nest)


def _fetched(leaf: Any) -> Any:
    return leaf.fetch() if isinstance(leaf, RemoteValue) else leaf


def _undistributed(leaf: Any) -> Any:
    if isinstance(leaf, Mirrored):
        return leaf.values[0]
    return leaf.values if isinstance(leaf, DistributedValues) else leaf


def _as_array(leaf: Any) -> Any:
    # The empty index makes numbers of arrays without dimensions.
    return as_array(leaf)[()] if isinstance(leaf, torch.Tensor) else leaf
