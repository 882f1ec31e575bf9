"""The way of data from datasets to the replicas of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.options import InputContext
from stratagem._input.options import (
    AutoShardPolicy,
    InputOptions,
    check_for_dataset,
    check_for_function,
)
from stratagem._input.read_ahead import ReadAhead
from stratagem._input.reader import Reader, State, check_dataset, length
from stratagem._input.rounds import (
    BEGINNING,
    DealElements,
    Dealing,
    DealtRounds,
    Position,
    Round,
    TransferredRounds,
)
from stratagem._input.sharding import InputWorker, undisturbed
from stratagem._input.specs import spec_of
from stratagem._input.splitting import without_rows
from stratagem_proto.errors import OutOfRangeError


@dataclass(frozen=True)
class InputPipeline:
    """Datasets, and how each step's input is made of them.

    Attributes:
        datasets: One, or one for each replica.
        dealing: How their elements become rounds.
        devices: Where the parts of a round go; None leaves one where it is.
        depth: How many rounds are read ahead, by a thread.
    """

    datasets: Sequence[Any]
    dealing: Dealing
    devices: Sequence[torch.device | None]
    depth: int

    def open(self, position: Position = BEGINNING) -> Iterator[Round]:
        """Return the rounds that follow `position`."""
        rounds = TransferredRounds(self._rounds(position), self.devices, aside=self.depth > 0)
        return ReadAhead(rounds, self.depth) if self.depth else rounds

    def _rounds(self, position: Position = BEGINNING) -> DealtRounds:
        beginning: Sequence[State | None] = [None] * len(self.datasets)
        states = position.states or beginning
        return DealtRounds(list(map(Reader, self.datasets, states)), self.dealing, position)

    @property
    def steps(self) -> int | None:
        """How many rounds there are, None if a dataset does not say."""
        lengths = [length(dataset) for dataset in self.datasets]
        known = [each for each in lengths if each is not None]
        return None if len(known) < len(lengths) else self.dealing.steps(known)

    @cached_property
    def spec(self) -> Any:
        """What the first round looks like; reads it, and leaves generators alone.

        Raises:
            OutOfRangeError: There is none.
        """
        with undisturbed(self.datasets):
            return spec_of(self._rounds())

    @cached_property
    def padding(self) -> Sequence[Any]:
        """The parts of a round without data; reads the first one, as `spec` does.

        Raises:
            OutOfRangeError: There is none.
        """
        with undisturbed(self.datasets):
            first = next(TransferredRounds(self._rounds(), self.devices, False), None)
        if first is None:
            raise OutOfRangeError(
                "The dataset of this worker has no elements, so nobody knows what "
                "empty ones look like while other workers have data; give every "
                "worker at least one"
            )
        return [without_rows(part) for part in first.parts]


def splitting_pipeline(
    dataset: Any,
    worker: InputWorker,
    options: InputOptions | None = None,
    policy: AutoShardPolicy | int = AutoShardPolicy.AUTO,
) -> InputPipeline:
    """Return a pipeline that splits each element between the replicas of `worker`.

    Raises:
        InvalidTypeError: `dataset` is none.
        InvalidArgumentError: An option or the policy has no meaning, or cannot be honoured with
            this dataset.
        NotFoundError: Files are to be shared, but the dataset names none.
        UnimplementedError: Each replica is to have a dataset of its own, or several workers are to
            share this one in a way that does not exist.
    """
    check_for_dataset(options)
    check_dataset(dataset, "The dataset")
    devices = _destinations(worker.devices, options)
    share = worker.share_of(dataset, policy)
    return InputPipeline([share.dataset], share.dealing, devices, _depth(devices, options))


def function_pipeline(
    dataset_fn: Callable[[InputContext], Any],
    worker: InputWorker,
    options: InputOptions | None = None,
) -> InputPipeline:
    """Return a pipeline that deals the elements of what `dataset_fn` returns.

    Args:
        dataset_fn: Called here, on the CPU: once, or for each replica.
        worker: Who reads.
        options: How.

    Raises:
        InvalidTypeError: `dataset_fn` returns no dataset.
        InvalidArgumentError: Options contradict each other.
    """
    check_for_function(options)
    per_replica = options is not None and options.per_replica
    contexts = replica_contexts(worker) if per_replica else [worker.context]
    devices = _destinations(worker.devices, options)
    return InputPipeline(
        [dataset_made(dataset_fn, context) for context in contexts],
        DealElements(len(devices)),
        devices,
        _depth(devices, options),
    )


def replica_contexts(worker: InputWorker) -> list[InputContext]:
    """Return a context for each replica, as if it were alone. Spec: INP-35."""
    local, whole = len(worker.devices), worker.context
    return [
        replace(
            whole,
            num_input_pipelines=whole.num_input_pipelines * local,
            input_pipeline_id=whole.input_pipeline_id * local + index,
        )
        for index in range(local)
    ]


def dataset_made(dataset_fn: Callable[[InputContext], Any], context: InputContext) -> Any:
    """Call `dataset_fn` on the CPU.

    Raises:
        InvalidTypeError: It returns no dataset. Spec: INP-26.

    Spec: INP-49e.
    """
    with device_names.device("CPU:0"):
        dataset = dataset_fn(context)
    check_dataset(dataset, "What the dataset function returned")
    return dataset


def _destinations(
    devices: Sequence[torch.device | None], options: InputOptions | None
) -> Sequence[torch.device | None]:
    fetched = options is None or options.experimental_fetch_to_device
    return devices if fetched else [None] * len(devices)


def _depth(devices: Sequence[torch.device | None], options: InputOptions | None) -> int:
    if options is None:
        return read_ahead_by_default(devices)
    return options.experimental_per_replica_buffer_size


def read_ahead_by_default(devices: Sequence[torch.device | None]) -> int:
    """Return how many rounds to read ahead where nobody said.

    Where all is on the CPU there is nothing to copy, and a dataset that draws from torch's
    generator in a thread would race with the training step: none.
    """
    return int(any(device is not None and device.type != "cpu" for device in devices))
