"""The input functions of the first version of the API."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from stratagem._core import device_names
from stratagem._core.options import InputContext
from stratagem._input.options import InputReplicationMode
from stratagem._input.pipeline import InputPipeline, read_ahead_by_default
from stratagem._input.reader import is_dataset
from stratagem._input.rounds import DealElements
from stratagem._input.sharding import InputWorker
from stratagem_proto.errors import InvalidArgumentError, OutOfRangeError


def input_function_pipeline(
    input_fn: Callable[[InputContext], Any], worker: InputWorker, mode: InputReplicationMode
) -> InputPipeline:
    """Return a pipeline that deals what `input_fn` provides, in whole rounds.

    Args:
        input_fn: Called once, on the CPU. It returns a dataset, or a function that returns one
            element per call and ends by StopIteration or OutOfRangeError.
        worker: Who reads.
        mode: How often the function is called.

    Raises:
        InvalidArgumentError: `mode` is not PER_WORKER, or `input_fn` returns something else.

    Spec: INP-4, INP-30b, INP-49c.
    """
    if mode is not InputReplicationMode.PER_WORKER:
        raise InvalidArgumentError(
            f"Input replication mode not supported: {mode!r}; make_input_fn_iterator "
            "takes InputReplicationMode.PER_WORKER"
        )
    with device_names.device("CPU:0"):
        dataset = dataset_of(input_fn(worker.context))
    devices = worker.devices
    dealing = DealElements(len(devices), whole_rounds=True)
    return InputPipeline([dataset], dealing, devices, read_ahead_by_default(devices))


def dataset_of(made: Any) -> Any:
    """Return the dataset that an input function provides.

    Raises:
        InvalidArgumentError: `made` is neither a dataset nor a function.
    """
    if is_dataset(made) or inspect.isgeneratorfunction(made):
        return made
    if not callable(made):
        raise InvalidArgumentError(
            "input_fn must return a tf.data.Dataset or a callable, as a DataLoader, a "
            f"Dataset, a list or a function, not {type(made).__name__}"
        )
    return lambda: _each_call(made)


def _each_call(function: Callable[[], Any]) -> Iterator[Any]:
    while True:
        try:
            element = function()
        except (StopIteration, OutOfRangeError):
            return
        yield element
