"""What each worker keeps for a coordinator: datasets, iterators and variables of its own."""

from __future__ import annotations

import copy
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeGuard

import torch
from torch.utils.data import DataLoader

from stratagem._coordinator.monitor import Patience
from stratagem._core.contexts import experimental_get_current_worker_index, on_worker
from stratagem._core.variable_creation import NextCreator, creator_scope
from stratagem._core.variables import LocalVariable, Variable
from stratagem._input.iterator import DistributedDataset
from stratagem._input.read_order import can_be_read_again
from stratagem._input.reader import Reader, check_dataset, is_dataset
from stratagem._input.rounds import element_spec
from stratagem._input.sharding import require_undivided, undisturbed
from stratagem._shipping.call import FunctionCall
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._shipping.kinds import Definition, Parcel, RemoteObject
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem_proto.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from stratagem_proto.v1.worker_pb2 import ResultPlace


class Keeper(Protocol):
    """A worker that keeps things."""

    @property
    def there(self) -> bool: ...

    def define(self, definition: Definition) -> None:
        """Let it make an object when it is first needed."""

    def take(self, handle: int, place: ResultPlace) -> None:
        """Let it copy the result of a closure from the worker that has it."""

    def place(self, closure: int) -> ResultPlace:
        """Return where others can copy a result from that stays on this worker."""

    def build(self, handle: int, call: Parcel) -> None:
        """Let it keep what a call returns, before it runs what is sent later."""


class WorkerValue(RemoteObject):
    """Stands for what each worker keeps under a handle while this object lives."""

    def __init__(self, worker_values: WorkerValues) -> None:
        self._worker_values = worker_values
        self._handle: int | None = None

    def _shipped_handle(self) -> int:
        if self._handle is None:
            self._handle = self._worker_values.admit(self)
        return self._handle

    def _shipped_subject(self) -> WorkerValue:
        return self

    @abstractmethod
    def _provide(self, keeper: Keeper) -> None: ...


class WorkerValues:
    """The handles of what the workers keep.

    Attributes:
        closure_pickler: Makes what is sent to them.
        outcomes: How outcomes of functions travel.
    """

    def __init__(self, closure_pickler: ClosurePickler, outcomes: OutcomeForm) -> None:
        self.closure_pickler: ClosurePickler = closure_pickler
        self.outcomes: OutcomeForm = outcomes
        # Filled by the garbage collector, in any thread and with any lock held.
        self._gone: deque[int] = deque()

    def admit(self, owner: WorkerValue) -> int:
        """Return a handle that is valid while its owner lives."""
        handle = self.closure_pickler.new_handle()
        weakref.finalize(owner, self._gone.append, handle).atexit = False
        return handle

    def gone(self) -> list[int]:
        """Return the handles that nothing names any more, since the last call."""
        released = [self._gone.popleft() for _ in range(len(self._gone))]
        return released + self.closure_pickler.gone()


class PerWorkerValues(WorkerValue):
    """One value for each worker.

    A function that gets it as an argument, or has it in a closure, finds the value of the worker
    that runs it. A worker makes its value when it first needs it, and anew when it comes back after
    it was lost.

    Spec: COO-5, COO-13.
    """

    def __init__(self, worker_values: WorkerValues, build: Callable[[], Any]) -> None:
        super().__init__(worker_values)
        self._build = build
        self._parcel = worker_values.closure_pickler.dump(
            FunctionCall(build, (), {}), "a per-worker value"
        )

    def _provide(self, keeper: Keeper) -> None:
        keeper.build(self._shipped_handle(), self._parcel)


class PerWorkerIterator(PerWorkerValues):
    """An iterator of each worker over a dataset. Spec: COO-13, COO-14.

    Args:
        dataset: The dataset.
        build: Makes the iterator, on a worker.
    """

    def __init__(self, dataset: PerWorkerDataset, build: Callable[[], Any]) -> None:
        super().__init__(dataset._worker_values, build)
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        """The `element_spec` of the dataset."""
        return self._dataset.element_spec

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        """Raise an error: only workers read the dataset.

        Raises:
            UnimplementedError: Always.
        """
        raise UnimplementedError(
            "Iterating over an iterator of the workers is not supported right now on "
            "the coordinator; pass it to a function by coordinator.schedule(fn, "
            "args=(iterator,)), and call next(iterator) there"
        )


class PerWorkerDataset(PerWorkerValues):
    """A dataset of each worker.

    `iter` gives a `PerWorkerIterator`, to be passed to scheduled functions. Passed itself, it is
    the dataset that the worker made.

    Spec: COO-12 to COO-14.
    """

    def __iter__(self) -> PerWorkerIterator:
        """Return iterators that start at the beginning of new datasets.

        Workers get the dataset as it is now in the program, or what `dataset_fn` makes then. A
        generator of a loader goes on, so that each pass has another order.
        """
        iterator = PerWorkerIterator(self, partial(_opened, self._build))
        _go_on(self._build)
        return iterator

    def build(self) -> PerWorkerValues:
        """Return the datasets themselves, to be passed to scheduled functions."""
        return PerWorkerValues(self._worker_values, self._build)

    @cached_property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the elements, as `DistributedDataset.element_spec`.

        Makes the dataset of worker 0 on this machine, and reads its first element, of a copy where
        that would be missing in what travels to the workers.

        Raises:
            OutOfRangeError: The dataset is empty.
        """
        with on_worker(0):
            dataset = self._build()
            if _travels(self._build) and not can_be_read_again(dataset):
                dataset = copy.deepcopy(dataset)
            if isinstance(dataset, DistributedDataset):
                return dataset.element_spec
            with undisturbed([dataset]):
                for element in Reader(dataset):
                    return element_spec(element)
        raise OutOfRangeError("The dataset has no elements, so there is no element_spec to tell")


def build_of(dataset_or_fn: Any) -> Callable[[], Any]:
    """Return how workers make a dataset, of a dataset or a function that makes it. Spec: COO-12.

    Raises:
        InvalidArgumentError: It is neither, or a loader that reads only a part of its data.
    """
    if callable(dataset_or_fn):
        return partial(_made_by, dataset_or_fn)
    if isinstance(dataset_or_fn, DistributedDataset) or is_dataset(dataset_or_fn):
        require_undivided(dataset_or_fn)
        return partial(_same, dataset_or_fn)
    raise InvalidArgumentError(
        f"Unexpected dataset type {type(dataset_or_fn).__name__}: pass a DataLoader, a "
        "Dataset, a list, a distributed dataset, or a function without arguments that "
        "returns one"
    )


def _travels(build: Callable[[], Any]) -> TypeGuard[partial[Any]]:
    """Return whether workers get the dataset itself, and not a function that makes it."""
    return isinstance(build, partial) and build.func is _same


def _go_on(build: Callable[[], Any]) -> None:
    """Draw from the generators of a dataset that travels, as whoever reads it here would."""
    dataset = build.args[0] if _travels(build) else None
    if isinstance(dataset, DataLoader):
        # A batch sampler of the user's own has another sampler than the loader.
        owners = dataset, dataset.sampler, getattr(dataset.batch_sampler, "sampler", None)
        drawing = [getattr(owner, "generator", None) for owner in owners]
        for generator in {one for one in drawing if isinstance(one, torch.Generator)}:
            torch.randint(2, (1,), generator=generator)


# What workers do. They know these functions by name.


def _same(dataset: Any) -> Any:
    return dataset


def _made_by(dataset_fn: Callable[[], Any]) -> Any:
    with creator_scope(_refuse_variable):
        dataset = dataset_fn()
    if not isinstance(dataset, DistributedDataset | Iterator):
        check_dataset(dataset, "What dataset_fn returned")
    return dataset


def _opened(build: Callable[[], Any]) -> Any:
    dataset = build()
    return iter(dataset) if isinstance(dataset, DistributedDataset) else Reader(dataset)


def _refuse_variable(next_creator: NextCreator, **kwargs: Any) -> Variable:
    raise InvalidArgumentError(
        "Creating variables in `dataset_fn` is not allowed: each worker would create "
        f"another one, here {kwargs.get('name')!r}; create it in the strategy's scope "
        "on the coordinator and use it in dataset_fn"
    )


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
        load = self._worker_values.outcomes.load
        return [load(answer, "a worker") for answer in self._ask_all(call, patience)]

    def __reduce__(self) -> Any:
        return _itself, (self._copies,)


# What workers do. They know these functions by name.


def _made(given: Mapping[str, Any]) -> LocalVariable:
    worker = experimental_get_current_worker_index()
    return LocalVariable(**given, device=f"/job:worker/task:{worker}/device:CPU:0")


def _itself(copy: LocalVariable) -> LocalVariable:
    return copy
