"""What a scheduled function will have returned."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from stratagem._coordinator.closure import Result
from stratagem._core.distributed_values import DistributedValues, Mirrored
from stratagem._core.nests import map_leaves
from stratagem._core.tensors import as_array
from stratagem._shipping.kinds import RemoteObject


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
    """Put what each `RemoteValue` of a nest fetches in its place."""
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
