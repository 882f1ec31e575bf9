"""Distributed datasets, whose elements are shared among replicas, and iterators over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stratagem._core.contexts import current_context, require_strategy
from stratagem._core.distributed_values import regroup
from stratagem._core.nests import map_leaves
from stratagem._input.pipeline import InputPipeline
from stratagem._input.read_order import PassRead
from stratagem._input.reader import Peekable
from stratagem._input.rounds import (
    BEGINNING,
    PerReplicaSpec,
    Position,
    Round,
    exact_spec,
    hand_over,
)
from stratagem._input.sharding import ShuffleState
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

_NONE = object()


class Optional:
    """A value, or none of a known form: what `get_next_as_optional` returns.

    Others are made by `from_value` and `empty`. Spec: INP-43, INP-54.
    """

    __module__ = "stratagem.experimental"

    def __init__(self, spec: Callable[[], Any], value: Any = _NONE) -> None:
        self._spec, self._value = spec, value

    @classmethod
    def from_value(cls, value: Any) -> Optional:
        """Return an optional with a value.

        Args:
            value: A nest; numbers in it become tensors.

        Raises:
            InvalidArgumentError: It is None.
        """
        if value is None:
            raise InvalidArgumentError(
                "Optional.from_value takes a value, and None is none; use Optional.empty"
            )
        found = map_leaves(_as_tensor, value)
        return cls(lambda: exact_spec(found), found)

    @classmethod
    def empty(cls, element_spec: Any) -> Optional:
        """Return an optional without a value; `element_spec` is that of one that had one."""
        return cls(lambda: element_spec)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the value, or of what there would be."""
        return self._spec()

    def has_value(self) -> bool:
        """Return whether there is a value: False at the end of the data."""
        return self._value is not _NONE

    def get_value(self) -> Any:
        """Return the value.

        Raises:
            InvalidArgumentError: There is none.
        """
        if not self.has_value():
            raise InvalidArgumentError(
                "The optional has no value, for the data have ended; ask has_value() "
                "before get_value()"
            )
        return self._value


class DistributedIterator(Iterator[Any]):
    """Gives the input of one step after the other.

    An input is a nest of `PerReplica`, of plain tensors where there is one replica.

    Spec: INP-40 to INP-45.
    """

    __module__ = "stratagem"

    def __init__(self, strategy: AnyStrategy, pipeline: InputPipeline) -> None:
        self._strategy = strategy
        self._pipeline = pipeline
        self._shuffle: ShuffleState | None = None
        self._rewind()

    def _rewind(self, position: Position = BEGINNING) -> None:
        self._position = position
        self._rounds: Peekable[Round] | None = None
        self._read: PassRead | None = None
        self._ended = False

    def _opened(self) -> Peekable[Round]:
        """Return the rounds of the pass; others, where it was begun anew."""
        # As late as this, a loader draws the order of its pass once, also for an iterator that goes
        # elsewhere first.
        if self._rounds is None:
            self._shuffle = self._pipeline.draw()
            self._rounds = Peekable(self._pipeline.open(self._position))
            order = self._pipeline.order
            self._read = None if order is None else order.read(self._position)
        return self._rounds

    def __next__(self) -> Any:
        """Return the input of the next step.

        Raises:
            StopIteration: The data have ended, those of all workers in sync.
            InvalidArgumentError: A replica is running.
            ContextError: Another strategy is in charge.
        """
        self._require_outside_of_replicas()
        round_ = self._next_round()
        hand_over(round_)
        self._position = round_.position
        parts = round_.parts
        return parts[0] if len(parts) == 1 else regroup(parts, always_wrap=True)

    def _next_round(self) -> Round:
        if self._ended:
            raise StopIteration
        round_ = next(self._opened(), None)
        read = None if self._read is None else self._read.describe(round_)
        if not self._strategy.extended._input_left(round_ is not None, read):
            self._ended = True
            raise StopIteration
        if round_ is None:
            return Round(self._pipeline.padding, self._position)
        self._pipeline.note(round_)
        return round_

    def _require_outside_of_replicas(self) -> None:
        context = current_context()
        if context is None:
            return
        require_strategy(self._strategy)
        if context.replica_context is not None:
            raise InvalidArgumentError(
                "next(iterator) should be called from outside of replica_fn, as in "
                "strategy.run(replica_fn, args=(next(iterator),))"
            )

    def get_next(self) -> Any:
        """Return the input of the next step.

        Raises:
            OutOfRangeError: The data have ended. Spec: INP-42.
            InvalidArgumentError: A replica is running.
            ContextError: Another strategy is in charge.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(
                "End of sequence: the dataset has no further elements; make a new "
                "iterator to start again"
            ) from None

    def get_next_as_optional(self) -> Optional:
        """Return the input of the next step, or an optional without a value.

        Raises:
            InvalidArgumentError: A replica is running.
            ContextError: Another strategy is in charge.

        Spec: INP-43.
        """
        try:
            found = next(self)
        except StopIteration:
            return Optional(lambda: self.element_spec)
        return Optional(lambda: exact_spec(found), found)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of what `next` returns. Spec: INP-45."""
        return self._pipeline.spec

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last input that was taken.

        It is for an iterator over the same dataset, in this program or a later one. Where the
        dataset or its iterator has a `state_dict` of its own, that is part of it; otherwise it
        counts elements, and the dataset has to give them in the same order again: the generator of
        a `DataLoader` that shuffles has to be seeded as it was when the pass began.
        """
        states = self._position.states
        return {"datasets": None if states is None else list(states), "taken": self._position.taken}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position that `state_dict` returned.

        A loader with a generator of its own shuffles as it did for what this iterator has read, if
        it has read anything.

        Raises:
            InvalidArgumentError: It is not the state of such an iterator, or a dataset that knew
                its position no longer does.
        """
        position = _position(state_dict, len(self._pipeline.datasets))
        if self._shuffle is not None:
            self._shuffle.repeat()
        self._rewind(position)
        self._opened()


def _as_tensor(leaf: Any) -> Any:
    return torch.as_tensor(leaf) if isinstance(leaf, bool | int | float) else leaf


def _position(state: Mapping[str, Any], datasets: int) -> Position:
    """Return the position that the state of an iterator over `datasets` has."""
    if not isinstance(state, Mapping) or "datasets" not in state:
        raise InvalidArgumentError(
            f"{state!r} is no state of an iterator over a distributed dataset; give "
            "what its state_dict() returned"
        )
    states = state["datasets"]
    if states is not None and len(states) != datasets:
        raise InvalidArgumentError(
            f"The state is one of an iterator over {len(states)} datasets, but this "
            f"one reads {datasets}; distribute the dataset as it was when the state "
            "was saved"
        )
    return Position(states, int(state.get("taken", 0)))


class InputIterator(DistributedIterator):
    """An iterator of the first version of the API, which can be started again.

    Spec: INP-49b, DEF-7.
    """

    __module__ = "stratagem"

    def initialize(self) -> list[Any]:
        """Start again from the beginning.

        Returns:
            The operations that would have to be run in a graph: none.
        """
        self._rewind()
        return []

    @property
    def initializer(self) -> list[Any]:
        """What `initialize` returns, after calling it."""
        return self.initialize()

    @property
    def output_shapes(self) -> Any:
        """The shape of each leaf, of one replica; None is any number of rows."""
        return self._of_first_replica(lambda spec: spec.shape)

    @property
    def output_types(self) -> Any:
        """The dtype of each leaf."""
        return self._of_first_replica(lambda spec: spec.dtype)

    @property
    def output_classes(self) -> Any:
        """The class of each leaf, as one replica sees it."""
        return self._of_first_replica(lambda spec: spec.kind)

    def _of_first_replica(self, attribute: Callable[[Any], Any]) -> Any:
        def ask(spec: Any) -> Any:
            first = spec.specs[0] if isinstance(spec, PerReplicaSpec) else spec
            return attribute(first)

        return map_leaves(ask, self.element_spec)


_State = TypeVar("_State")

_UNKNOWN = -2


class DistributedDataset:
    """What a strategy makes of a dataset: one element for each step.

    Spec: INP-40 to INP-47.
    """

    __module__ = "stratagem"

    def __init__(self, strategy: AnyStrategy, pipeline: InputPipeline) -> None:
        self._strategy = strategy
        self._opened = pipeline

    @property
    def _pipeline(self) -> InputPipeline:
        return self._opened

    def __iter__(self) -> DistributedIterator:
        """Return an iterator that starts from the beginning. Spec: INP-40."""
        return DistributedIterator(self._strategy, self._pipeline)

    def __len__(self) -> int:
        """Return the number of steps.

        Raises:
            InvalidTypeError: The dataset has no length.
        """
        steps = self._pipeline.steps
        if steps is None:
            raise InvalidTypeError(
                "The dataset does not know its length; iterate until it ends, or give it __len__"
            )
        return steps

    # A dataset may have no length, and it is more than its length.
    def __bool__(self) -> bool:
        return True

    @property
    def cardinality(self) -> int:
        """The number of steps, -2 if it is unknown. Spec: INP-47."""
        steps = self._pipeline.steps
        return _UNKNOWN if steps is None else steps

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the elements, from reading the first one.

        A nest of objects with `shape` and `dtype`; with several replicas of objects whose `specs`
        are those of each.

        Raises:
            OutOfRangeError: The dataset is empty. Spec: INP-45.
        """
        return self._pipeline.spec

    def reduce(self, initial_state: _State, reduce_func: Callable[[_State, Any], _State]) -> _State:
        """Return `reduce_func(state, element)` carried through all steps.

        Args:
            initial_state: The state before the first step.
            reduce_func: Returns the state after a step.

        Spec: INP-46.
        """
        return reduce(reduce_func, self, initial_state)
