"""Loops of several steps behind one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stratagem._core.contexts import get_strategy
from stratagem._core.nests import leaves
from stratagem._core.options import ReduceOp
from stratagem._core.replica_context import get_replica_context
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


class GivesInputs(Protocol):
    """What a loop of steps reads."""

    def get_next(self) -> Any:
        """Return the input of the next step.

        Raises:
            OutOfRangeError: The data have ended.
        """


class MultiStepContext:
    """What a step of `extended.experimental_run_steps_on_iterator` reports to.

    Spec: MSC-3 to MSC-8.
    """

    __module__ = "stratagem"

    def __init__(self) -> None:
        self._last_step_outputs: dict[str, Any] = {}
        self._reduced: set[str] = set()
        self._non_tensor_outputs: dict[str, Any] = {}
        self._listed: set[str] = set()

    @property
    def run_op(self) -> None:
        """The operation that would run the loop in a graph: None."""

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What the last step has set, by name. Spec: MSC-8."""
        return self._last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """What is no nest of tensors, by name."""
        return self._non_tensor_outputs

    def set_last_step_output(
        self, name: str, output: Any, reduce_op: ReduceOp | str | None = None
    ) -> None:
        """Set an output that is of interest after the last step.

        In a replica this is a merge call, which all replicas have to make.

        Args:
            name: Its name.
            output: A tensor, or what `run` returned.
            reduce_op: How the replicas' values become one; None, outside of replicas only, leaves
                `output` as it is.

        Raises:
            InvalidArgumentError: A replica gives no `reduce_op`.

        Spec: MSC-4, MSC-5.
        """
        replica = get_replica_context()
        if replica is not None:
            _require_reduction(name, reduce_op)
            replica.merge_call(
                lambda _, merged: self.set_last_step_output(name, merged, reduce_op), (output,)
            )
        elif reduce_op is None:
            self._set_output(name, output, reduced=False)
        else:
            total = get_strategy().reduce(reduce_op, output, axis=None)
            self._set_output(name, total, reduced=True)

    def _set_output(self, name: str, output: Any, reduced: bool) -> None:
        self._last_step_outputs[name] = output
        (self._reduced.add if reduced else self._reduced.discard)(name)

    def _is_reduced(self, name: str) -> bool:
        """Return whether an output is one for all replicas."""
        return name in self._reduced

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Set an output of any kind.

        In a replica this is a merge call, which all replicas have to make; the output is then the
        tuple of what each of them gives.

        Args:
            name: Its name.
            output: Anything.

        Spec: MSC-7.
        """
        replica = get_replica_context()
        if replica is None:
            self._set_other(name, output, listed=False)
            return

        def set_all(strategy: AnyStrategy, merged: Any) -> None:
            outputs = strategy.experimental_local_results(merged)
            self._set_other(name, outputs, listed=True)

        replica.merge_call(set_all, (output,))

    def _set_other(self, name: str, output: Any, listed: bool) -> None:
        self._non_tensor_outputs[name] = output
        (self._listed.add if listed else self._listed.discard)(name)

    def _is_listed(self, name: str) -> bool:
        """Return whether an output has one element for each replica."""
        return name in self._listed


def _require_reduction(name: str, reduce_op: object) -> None:
    if reduce_op is None:
        raise InvalidArgumentError(
            f"Output {name!r} is set by replicas, so reduce_op must say how their "
            "values become one; set it outside of the replicas to keep them all"
        )


def run_steps(
    strategy: AnyStrategy,
    fn: Callable[[MultiStepContext, Any], Any],
    iterator: GivesInputs,
    iterations: int,
    initial_loop_values: Any,
) -> MultiStepContext:
    """Call `fn(context, inputs)` for so many inputs.

    Args:
        strategy: The strategy, current in this thread, in cross-replica context.
        fn: The step.
        iterator: Gives the inputs.
        iterations: How many.
        initial_loop_values: None, or a nest with as many leaves as outputs; a mapping is what
            `last_step_outputs` has before the first step.

    Spec: MSC-2 to MSC-12.
    """
    context = MultiStepContext()
    if isinstance(initial_loop_values, Mapping):
        context._last_step_outputs.update(initial_loop_values)
    for _ in range(iterations):
        fn(context, iterator.get_next())
        if initial_loop_values is not None:
            require_as_many(strategy, initial_loop_values, context.last_step_outputs)
    return context


def require_as_many(strategy: AnyStrategy, initial: Any, outputs: dict[str, Any]) -> None:
    """Check that a graph's loop could carry the outputs.

    Raises:
        InvalidArgumentError: There are not as many initial values. Spec: MSC-10.
    """
    parts = map(strategy.experimental_local_results, outputs.values())
    given, needed = len(leaves(initial)), len(leaves(list(parts)))
    if given != needed:
        raise InvalidArgumentError(
            f"initial_loop_values has {given} leaves, but the step set {needed} "
            f"outputs, {', '.join(outputs)}: they don't have the same nested "
            "structure; leave initial_loop_values out"
        )
