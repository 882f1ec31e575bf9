"""Which worker runs the function that asks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from stratagem._core.contexts.presence import Presence
from stratagem_proto.errors import ContextError

_index: ContextVar[int | None] = ContextVar("stratagem_worker_index", default=None)


def experimental_get_current_worker_index() -> int:
    """Return the index of the worker that runs this function.

    For functions that `ClusterCoordinator.schedule` runs, and for those given to
    `create_per_worker_dataset`, which may read another part of the data on each worker.

    Raises:
        ContextError: No worker runs this; it is called from elsewhere.

    Spec: COO-17.
    """
    index = _index.get()
    if index is None:
        raise ContextError(
            "Cannot retrieve the worker index: this function is not being executed on "
            "a worker; call experimental_get_current_worker_index in what is given to "
            "ClusterCoordinator.schedule or create_per_worker_dataset"
        )
    return index


def runs_on_a_worker() -> bool:
    """Return whether a worker runs what asks."""
    return _index.get() is not None


def on_worker(index: int) -> AbstractContextManager[None]:
    """Let this thread run functions for a worker."""
    return Presence(_index, index)
