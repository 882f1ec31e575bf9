"""The way of data from datasets to the replicas of a worker."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch

from stratagem._core import device_names
from stratagem._core.options import InputContext
from stratagem._input.options import (
    AutoShardPolicy,
    InputOptions,
    InputReplicationMode,
    check_for_dataset,
    check_for_function,
)
from stratagem._input.read_order import ReadOrder, can_be_read_again
from stratagem._input.reader import ReadAhead, Reader, State, check_dataset, is_dataset, length
from stratagem._input.rounds import (
    BEGINNING,
    DealElements,
    Dealing,
    DealtRounds,
    Position,
    Round,
    TransferredRounds,
    spec_of,
    without_rows,
)
from stratagem._input.sharding import InputWorker, ShuffleState, undisturbed
from stratagem_proto.errors import InvalidArgumentError, OutOfRangeError


@dataclass(eq=False)
class InputPipeline:
    """Datasets, and how each step's input is made of them.

    Attributes:
        datasets: One, or one for each replica.
        dealing: How their elements become rounds.
        devices: Where the parts of a round go; None leaves one where it is.
        depth: How many rounds are read ahead, by a thread.
        order: What all workers have to read alike, if anything.
    """

    datasets: Sequence[Any]
    dealing: Dealing
    devices: Sequence[torch.device | None]
    depth: int
    order: ReadOrder | None = None

    def __post_init__(self) -> None:
        self._sources = [_Source(dataset) for dataset in self.datasets]
        self._form: _Form | None = None
        self._drawn: ShuffleState | None = None

    def draw(self) -> ShuffleState:
        """Return the generators of the loaders as the pass finds them that is opened next."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            drawn = ShuffleState(self.datasets)
            drawn.note()
        return drawn

    def open(self, position: Position = BEGINNING) -> Iterator[Round]:
        """Return the rounds that follow `position`."""
        beginning: Sequence[State | None] = [None] * len(self.datasets)
        states = zip(self._sources, position.states or beginning, strict=True)
        readers = [source.read(state) for source, state in states]
        dealt = DealtRounds(readers, self.dealing, position)
        rounds = TransferredRounds(dealt, self.devices, aside=self.depth > 0)
        return ReadAhead(rounds, self.depth) if self.depth else rounds

    @property
    def steps(self) -> int | None:
        """How many rounds there are, None if a dataset does not say."""
        lengths = [length(dataset) for dataset in self.datasets]
        known = [each for each in lengths if each is not None]
        return None if len(known) < len(lengths) else self.dealing.steps(known)

    @property
    def spec(self) -> Any:
        """What the first round looks like, without taking it from the next pass.

        Raises:
            OutOfRangeError: There is none.
        """
        form = self._looked_at()
        if form is None:
            raise OutOfRangeError(
                "The dataset has no elements, so there is no element_spec to tell"
            )
        return form.spec

    @property
    def padding(self) -> Sequence[Any]:
        """The parts of a round without data, in the form of the first one.

        Raises:
            OutOfRangeError: There is none.
        """
        form = self._looked_at()
        if form is None:
            raise OutOfRangeError(
                "The dataset of this worker has no elements, so nobody knows what "
                "empty ones look like while other workers have data; give every "
                "worker at least one"
            )
        return form.padding

    def note(self, round_: Round) -> None:
        """Remember what rounds look like."""
        if self._form is None:
            self._form = _Form(spec_of(round_.parts), [without_rows(part) for part in round_.parts])

    def _looked_at(self) -> _Form | None:
        if self._form is not None:
            return self._form
        again = all(map(can_be_read_again, self.datasets))
        # What is looked at is read once more, or it is the beginning of the next pass.
        drawn = None if again else self.draw()
        with undisturbed(self.datasets) if again else nullcontext(), suppress(StopIteration):
            dealt = self.dealing.rounds([source.look() for source in self._sources])
            round_ = Round(dealt.rounds[0], BEGINNING)
            self.note(next(TransferredRounds(iter([round_]), self.devices, aside=False)))
        self._drawn = drawn
        return self._form


class _Source:
    """A dataset that can be looked at before it is read.

    What can be read again is opened anew to look at it. Of anything else, such as a stream, what
    was looked at is the beginning of the next pass.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._looking: Reader | None = None
        self._taken: list[tuple[Any, State]] = []

    def read(self, state: State | None = None) -> Reader:
        """Return a reader from the beginning, or from a position on."""
        reader, self._looking = self._looking, None
        if reader is None:
            return Reader(self._dataset, state)
        reader.take_back(self._taken)
        self._taken = []
        if state is None:
            return reader
        if "loader" in state:
            return Reader(self._dataset, state)
        deque(islice(reader, int(state["elements"])), maxlen=0)
        return reader

    def look(self) -> Iterator[Any]:
        """Return an iterator over the elements from the first on."""
        if can_be_read_again(self._dataset):
            yield from Reader(self._dataset)
            return
        if self._looking is None:
            self._looking = Reader(self._dataset)
        yield from (element for element, _ in self._taken)
        for element in self._looking:
            self._taken.append((element, self._looking.state_dict()))
            yield element


class _Form(NamedTuple):
    """What rounds look like: their specs, and the parts of one without rows."""

    spec: Any
    padding: Sequence[Any]


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
    depth = _depth(devices, options)
    return InputPipeline([share.dataset], share.dealing, devices, depth, share.order)


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

    def each_call() -> Iterator[Any]:
        while True:
            try:
                element = made()
            except (StopIteration, OutOfRangeError):
                return
            yield element

    return each_call
