"""Datasets whose elements are shared among replicas."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem._input.iterator import DistributedIterator
from stratagem._input.pipeline import InputPipeline
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

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
