"""Variables of which each worker has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from stratagem._coordinator.data.per_worker import PerWorkerValues
from stratagem._coordinator.data.worker_values import WorkerValues
from stratagem._coordinator.threads.patience import Patience
from stratagem._core.contexts.worker_index import experimental_get_current_worker_index, on_worker
from stratagem._core.variables.local import LocalVariable
from stratagem._shipping.call import FunctionCall
from stratagem._shipping.parcel import Parcel
from stratagem._shipping.remote_objects.results import load_result

AskAll = Callable[[Parcel, Patience], Sequence[bytes]]
"""Lets every worker run a call; returns what each answers in time, in their order."""


class PerWorkerVariable(LocalVariable):
    """A variable of which the program and each of its workers have a copy.

    Nothing brings the copies together. A function finds that of the worker that runs it, which is
    kept in the worker's memory: when the worker is lost, it begins with its initial value again. No
    gradients are wanted of it.

    Args:
        worker_values: What the workers keep.
        ask_all: Lets all workers run something.
        given: The arguments of `Variable`.

    Spec: PSV-12.
    """

    def __init__(self, worker_values: WorkerValues, ask_all: AskAll, **given: Any) -> None:
        given["trainable"] = False
        with on_worker(0):
            super().__init__(**given)
        self._worker_values = worker_values
        self._ask_all = ask_all
        self._copies = PerWorkerValues(worker_values, partial(_made, given))

    def read_all(self, *, timeout: float | None = None) -> list[torch.Tensor]:
        """Return the values of all workers' copies, in the order of the workers.

        Waits for what runs on them, and for workers that are not there.

        Args:
            timeout: Longest wait in seconds; by default as long as it takes.

        Raises:
            WorkerLostError: A worker was lost before it answered.
            DeadlineExceededError: Some, which are named, have not answered in `timeout` seconds.
        """
        patience = Patience("read_all", timeout)
        call = self._worker_values.closure_pickler.dump(
            FunctionCall(LocalVariable.read_value, (self,), {})
        )
        return [load_result(answer) for answer in self._ask_all(call, patience)]

    def __reduce__(self) -> Any:
        return _itself, (self._copies,)


# What workers do. They know these functions by name.


def _made(given: Mapping[str, Any]) -> LocalVariable:
    worker = experimental_get_current_worker_index()
    return LocalVariable(**given, device=f"/job:worker/task:{worker}/device:CPU:0")


def _itself(copy: LocalVariable) -> LocalVariable:
    return copy
