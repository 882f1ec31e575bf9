"""What the steps of a loop report to, as in TensorFlow 1.12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratagem._core.deprecation import old_spelling
from stratagem._core.enums import VariableAggregation
from stratagem._core.replicas.replica_context import get_replica_context
from stratagem._core.values.regroup import select_replica
from stratagem._strategies import multi_step
from stratagem._strategies.current import get_strategy
from stratagem._strategies.strategy import Strategy
from stratagem.contrib._reduction import reduced

_HOST = "/device:CPU:0"

Step = Callable[[multi_step.MultiStepContext, Any], Any]
"""A step of a loop of today."""


class MultiStepContext:
    """A `stratagem.MultiStepContext` with the arguments of then.

    Args:
        context: That context.
    """

    def __init__(self, context: multi_step.MultiStepContext) -> None:
        self._context = context

    @property
    def run_op(self) -> None:
        """The operation that would run the loop in a graph: None."""
        return self._context.run_op

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What the last step has set, by name."""
        return self._outputs()

    def _outputs(self) -> dict[str, Any]:
        return self._context.last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """What is no nest of tensors, by name."""
        return self._context.non_tensor_outputs

    @old_spelling("stratagem.MultiStepContext.set_last_step_output with reduce_op")
    def set_last_step_output(
        self, name: str, output: Any, aggregation: VariableAggregation = VariableAggregation.NONE
    ) -> None:
        """Set an output that is of interest after the last step.

        Args:
            name: Its name.
            output: A tensor, or what `call_for_each_tower` returned.
            aggregation: SUM or MEAN of the towers' values, or ONLY_FIRST_TOWER; NONE, between
                towers only, leaves `output` as it is.

        Raises:
            InvalidArgumentError: A tower gives NONE, or it is another one.

        Spec: MSC-6.
        """
        replica = get_replica_context()
        if aggregation is VariableAggregation.NONE:
            self._context.set_last_step_output(name, output)
            return

        def set_reduced(strategy: Strategy, merged: Any) -> None:
            total = reduced(strategy, aggregation, merged, _HOST)
            self._context._set_output(name, total, reduced=True)

        if replica is None:
            set_reduced(get_strategy(), output)
        else:
            replica.merge_call(set_reduced, (output,))

    @old_spelling("stratagem.MultiStepContext.set_non_tensor_output")
    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Set an output of any kind; of towers the list of theirs. Spec: MSC-7."""
        replica = get_replica_context()
        if replica is None:
            self._context.set_non_tensor_output(name, output)
            return

        def set_all(strategy: Strategy, merged: Any) -> None:
            outputs = list(strategy.experimental_local_results(merged))
            self._context._set_other(name, outputs, listed=True)

        replica.merge_call(set_all, (output,))


class CoresContext(MultiStepContext):
    """What a loop on accelerators has returned.

    Args:
        context: What its steps have reported to.
        cores: How many there are.
    """

    def __init__(self, context: multi_step.MultiStepContext, cores: int) -> None:
        super().__init__(context)
        self._cores = cores

    def _outputs(self) -> dict[str, Any]:
        """Return lists of what each core has, where it was not reduced. Spec: MSC-8."""
        outputs = self._context.last_step_outputs.items()
        return {name: self._listed(name, value) for name, value in outputs}

    def _listed(self, name: str, value: Any) -> Any:
        if self._context._is_reduced(name):
            return value
        return [select_replica(core, value) for core in range(self._cores)]


def unpacking(fn: Callable[..., Any]) -> Step:
    """Return a step of today that calls one of then: `fn(context, *inputs)`.

    Of a list, too, the elements are arguments: a `DataLoader` makes lists of the tuples of its
    dataset. Spec: MSC-1.
    """

    def step(context: multi_step.MultiStepContext, inputs: Any) -> Any:
        several = isinstance(inputs, tuple | list)
        return fn(MultiStepContext(context), *(inputs if several else (inputs,)))

    return step
