"""What a scheduled function will have returned."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any

import torch

from stratagem._coordinator.residents import Keeper, Residents, WorkerValue
from stratagem._replicas.nests import map_leaves
from stratagem._replicas.values import DistributedValues, Mirrored
from stratagem._shipping.parcel import Definition
from stratagem._shipping.results import ResultKind, load_result
from stratagem_proto.errors import CancelledError


class RemoteValueStatus(Enum):
    """Where a `RemoteValue` stands. Spec: RMV-4."""

    NOT_READY = "NOT_READY"
    """Its function has not ended."""
    ABORTED = "ABORTED"
    """Its coordinator was closed before."""
    READY = "READY"
    """Its function has returned or failed."""


class RemoteValue(WorkerValue):
    """What a function that runs on some worker returns.

    `ClusterCoordinator.schedule` gives one at once. It can be an argument of further
    functions, which then run once it is there. What the function returned is kept here,
    whatever becomes of the worker.

    Spec: RMV-1 to RMV-5.
    """

    def __init__(self, residents: Residents, closure: int) -> None:
        super().__init__(residents)
        self._closure = closure
        self._ended = threading.Event()
        self._status = RemoteValueStatus.NOT_READY
        self._payload: bytes | None = None
        self._error: BaseException | None = None
        self._loaded: tuple[Any] | None = None

    @property
    def status(self) -> RemoteValueStatus:
        """Whether `fetch` and `get` would wait. Spec: RMV-4."""
        return self._status

    def fetch(self) -> Any:
        """Wait for the value and return it with arrays in place of tensors.

        Returns:
            What the function returned: tensors as NumPy arrays, those without
            dimensions as NumPy numbers, distributed values as tuples of these, other
            leaves as they are.

        Raises:
            CancelledError: The function was cancelled, or the coordinator closed.
            Exception: What the function raised, each time. Spec: ERR-8.

        Spec: RMV-1.
        """
        return map_leaves(_as_array, self.get())

    def get(self) -> Any:
        """Wait for the value and return it, with tensors on this machine's CPU.

        Returns:
            What the function returned; distributed values as tuples.

        Raises:
            CancelledError: The function was cancelled, or the coordinator closed.
            Exception: What the function raised, each time. Spec: ERR-8.

        Spec: RMV-2.
        """
        self._ended.wait()
        if self._error is not None:
            raise self._error
        if self._loaded is None:
            assert self._payload is not None
            self._loaded = (map_leaves(_undistributed, load_result(self._payload)),)
        return self._loaded[0]

    def _provide(self, keeper: Keeper) -> None:
        assert self._payload is not None, "a closure waits for its inputs"
        handle = self._shipped_handle()
        keeper.define(
            Definition(handle, 1, ResultKind.name, "a result", self._payload, {})
        )

    # How it ends, once.

    def _succeed(self, payload: bytes) -> None:
        self._payload = payload
        self._end(RemoteValueStatus.READY)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._end(RemoteValueStatus.READY)

    def _abort(self) -> None:
        self._error = CancelledError(
            "The value was aborted. Please reschedule its function: its coordinator "
            "was closed before the function ended"
        )
        self._end(RemoteValueStatus.ABORTED)

    def _end(self, status: RemoteValueStatus) -> None:
        self._status = status
        self._ended.set()

    def __repr__(self) -> str:
        return f"<RemoteValue, {self._status.name}>"


def _undistributed(leaf: Any) -> Any:
    if isinstance(leaf, Mirrored):
        return leaf.values[0]
    return leaf.values if isinstance(leaf, DistributedValues) else leaf


def _as_array(leaf: Any) -> Any:
    # The empty index makes numbers of arrays without dimensions.
    return leaf.numpy()[()] if isinstance(leaf, torch.Tensor) else leaf
