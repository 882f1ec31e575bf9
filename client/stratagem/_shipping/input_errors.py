"""Saying why a worker cannot load what a closure uses."""

from __future__ import annotations

from stratagem._shipping.pickles.exceptions import words_of
from stratagem._shipping.remote_objects.kinds import WorkerTask
from stratagem_proto.errors import ClosureInputError


def input_error(what: str, task: WorkerTask, error: BaseException) -> ClosureInputError:
    """Return the error of a worker that cannot load something.

    Args:
        what: What it is.
        task: The worker.
        error: Why not; becomes `original_exception`.
    """
    worker = f"/job:worker/task:{task.index}"
    why = f"{type(error).__name__}: {words_of(error)}{_advice(error)}"
    found = ClosureInputError(f"{worker} cannot load {what}: {why}", task=worker)
    found.original_exception = error
    return found


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return (
            f". Install {error.name} on the workers, or let it travel with the "
            "functions by cloudpickle.register_pickle_by_value"
        )
    if isinstance(error, AttributeError):
        return ". Let the workers have the version that the coordinator has"
    return ""
