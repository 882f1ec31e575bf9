"""Whether a coordinator has the functions of a program run on workers, and their datasets."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from stratagem._core.contexts import runs_on_a_worker
from stratagem._core.protocols import AnyStrategy
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import Variable
from stratagem._input.iterator import DistributedDataset
from stratagem._input.pipeline import InputPipeline
from stratagem._input.read_order import can_be_read_again
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError


class UnbuiltDataset(DistributedDataset):
    """A `DistributedDataset` that each worker makes when a function reads it.

    Spec: PS2-13.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        build: Callable[[Any], DistributedDataset],
        dataset: Any,
    ) -> None:
        self._strategy = strategy
        self._build, self._dataset = build, dataset
        self._made: DistributedDataset | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> UnbuiltDataset:
        """Return one of the same strategy, over a copy of data that cannot be read again."""
        distribute, dataset = self._build, self._dataset
        if not can_be_read_again(dataset):
            dataset = copy.deepcopy(dataset, memo)
        return UnbuiltDataset(self._strategy, distribute, dataset)

    @property
    def _pipeline(self) -> InputPipeline:
        """Of the worker that runs this.

        Raises:
            InvalidArgumentError: None does.
        """
        if not runs_on_a_worker():
            raise InvalidArgumentError(
                "To use this dataset, you need to pass this dataset to "
                "ClusterCoordinator.create_per_worker_dataset: workers read it, and "
                "not the coordinator's program, which schedules functions that do"
            )
        if self._made is None:
            self._made = self._build(self._dataset)
        return self._made._pipeline


_LOG = logging.getLogger("stratagem")


COUNTS_OR_COORDINATES = (
    "strategy.steps() counts what its program does itself, so that a step is applied once when the "
    "program is started again, but functions that a ClusterCoordinator has scheduled in it would "
    "run again; loop over a range(), and begin it with what strategy.restore() has as `extra`"
)


class Coordination:
    """What a strategy knows of its program's `ClusterCoordinator`, if there is one.

    With one, functions run on workers, each of which has all of the data, and in the program itself
    only by mistake, or to evaluate.

    Spec: PS2-8, PS2-10 to PS2-13.
    """

    def __init__(self, container_strategy: Callable[[], Strategy], active: bool) -> None:
        self.active = active
        self._container_strategy = container_strategy
        self._make_per_worker: Callable[..., Variable] | None = None
        self._end: Callable[[], None] = _nothing
        self._is_done: Callable[[], bool] = _is_done

    def begin(
        self,
        make_per_worker: Callable[..., Variable],
        end: Callable[[], None],
        is_done: Callable[[], bool],
    ) -> None:
        """Note that there is a coordinator from now on.

        Args:
            make_per_worker: Makes a variable of which each worker has its own; takes the arguments
                of `Variable`.
            end: Called when the strategy is closed.
            is_done: Says whether all functions have ended, or raises the error of one.
        """
        self.active = True
        self._make_per_worker = make_per_worker
        self._end = end
        self._is_done = is_done

    def require_done(self, method: str) -> None:
        """Check that no function is scheduled, which may use what a method deletes.

        Raises:
            FailedPreconditionError: One is.
            Exception: As `ClusterCoordinator.done`.
        """
        if not self._is_done():
            raise FailedPreconditionError(
                f"{method} was called while functions are scheduled, which may use what it "
                "deletes; call coordinator.join() before"
            )

    def close(self) -> None:
        """Let the coordinator end."""
        self._end()

    @property
    def is_off_workers(self) -> bool:
        """Whether there is a coordinator, and this is not one of its workers."""
        return self.active and not runs_on_a_worker()

    def create_per_worker(self, next_creator: NextCreator, given: dict[str, Any]) -> Variable:
        """Create a variable of which each worker has its own.

        Raises:
            InvalidArgumentError: There is no coordinator.
        """
        if self._make_per_worker is None:
            raise InvalidArgumentError(
                f"variable {given['name']!r} is to be a per_worker_variable, but there "
                "are no workers that functions are scheduled on; construct a "
                "ClusterCoordinator with this strategy first"
            )
        return next_creator(**given, make=self._make_per_worker)

    def unbuilt(self, build: Callable[[Any], Any], dataset: Any) -> Any:
        """Return a dataset that each worker builds for itself, of a dataset or a function."""
        return UnbuiltDataset(self._container_strategy(), build, dataset)

    def require_no_functions(self) -> None:
        """Refuse to count steps, of which scheduled functions would be a part.

        Raises:
            FailedPreconditionError: There is a coordinator.
        """
        if self.active:
            raise FailedPreconditionError(COUNTS_OR_COORDINATES)

    def require_programs_of_workers(self, method: str) -> None:
        """Refuse a method by which the programs of workers wait for each other.

        Raises:
            FailedPreconditionError: There is a coordinator.
        """
        if self.active:
            raise FailedPreconditionError(
                f"{method} waits for the programs of all workers, but with a ClusterCoordinator "
                "workers run what its program schedules, and no programs of their own that would "
                "come; call coordinator.join() in the coordinator's program, which waits for all "
                "that is scheduled. Functions on workers wait for no others"
            )

    def warn_off_workers(self, method: str) -> None:
        """Warn of what the program does itself while its workers wait."""
        if self.is_off_workers:
            _LOG.warning(
                "`%s` of a ParameterServerStrategy is invoked without using "
                "`ClusterCoordinator.schedule`, so that the coordinator's program does "
                "the work while workers wait; call it in a function that is scheduled",
                method,
            )


def _is_done() -> bool:
    """Nothing is scheduled."""
    return True


def _nothing() -> None:
    """There is no coordinator to end."""
