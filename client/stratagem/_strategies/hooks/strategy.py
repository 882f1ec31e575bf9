"""What a concrete strategy provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.variables.assignable import Write
from stratagem._core.variables.variable import Variable
from stratagem._strategies.hooks.inputs import InputHooks
from stratagem._strategies.hooks.reduction import ReductionHooks
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._checkpoints.deferred import Restoration
    from stratagem._core.variables.creators import NextCreator
    from stratagem._input.iterator import DistributedIterator
    from stratagem._strategies.multi_step import MultiStepContext
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class StrategyHooks(ReductionHooks, InputHooks):
    """The protected half of `StrategyExtended`, which subclasses override.

    A training step meets them in this order:

    - `_scope_resources(name)`: opened with each outermost `scope()` of the user.
    - `_create_variable(next_creator, **kwargs)`: for each `Variable(...)`.
    - `_input_context()`: when a dataset is distributed.
    - `_before_run()`, which calls `_before_replicas()`, then
      `_call_for_each_replica(fn, args, kwargs)`: for each `run`.
    - `_reduce_to`, `_batch_reduce_to`, `_gather`: values of all replicas
      become one. `_broadcast_to`: one value goes to several devices.
    - `_update`, `_update_non_slot`: functions run where variables are.

    All are called in the strategy's cross-replica context, but for the reducing
    ones, which may also be called in the default context.
    """

    @property
    def parameter_devices(self) -> Sequence[str]:
        """Names of the devices that variables are placed on. Spec: EXT-12."""
        raise self._missing("parameter_devices")

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether replicas need inputs of one shape. Spec: EXT-13."""
        return False

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker runs the user's program. Spec: EXT-16."""
        raise self._missing("experimental_between_graph")

    @property
    def experimental_should_init(self) -> bool:
        """Whether this task initialises variables. Spec: EXT-17."""
        raise self._missing("experimental_should_init")

    @property
    def should_checkpoint(self) -> bool:
        """Whether this task writes checkpoints. Spec: EXT-17."""
        raise self._missing("should_checkpoint")

    @property
    def should_save_summary(self) -> bool:
        """Whether this task writes summaries. Spec: EXT-17."""
        raise self._missing("should_save_summary")

    def _scope_resources(self, name: str | None) -> AbstractContextManager[object]:
        """Return what has to be open while the user's `scope(name)` is.

        It is entered last and left first. The scopes that methods enter by
        themselves do without.
        """
        return nullcontext()

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        """Create a variable of this strategy.

        Args:
            next_creator: Makes a plain variable; takes `device` as well, or `make`,
                a function that makes another one in its place.
            kwargs: The arguments of `Variable` with traits filled in and a
                unique name; in `colocate_vars_with` also `colocate_with`.
        """
        raise self._missing("_create_variable")

    def _values_of(self, variables: Sequence[Variable]) -> list[torch.Tensor]:
        """Return what several variables return as their `value()`."""
        return [variable.value() for variable in variables]

    def _write_each(self, write: Write, values: Mapping[Variable, Any]) -> None:
        """Write several variables, each its value or `IndexedSlices`."""
        for variable, value in values.items():
            variable._write(write, value)

    def _rows_of(
        self, variables: Sequence[Variable], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return some rows of each of several variables.

        Args:
            variables: The variables.
            rows: Which rows of each of them; int64 tensors of shape [n].
        """
        values = self._values_of(variables)
        pairs = zip(values, rows, strict=True)
        return [value[one.to(value.device)] for value, one in pairs]

    def _update_config_proto(self, config: ConfigProto) -> None:
        """Change a session's configuration, in place, to what is needed."""

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        """Check what is passed to `colocate_vars_with`. Spec: EXT-10."""
        owner = getattr(colocate_with_variable, "distribute_strategy", None)
        if owner is not self._container_strategy():
            raise InvalidArgumentError(
                "`colocate_vars_with` must only be passed a variable created in this "
                f"strategy's scope, not {colocate_with_variable!r}"
            )

    def _before_replicas(self) -> None:
        """Prepare for replicas to run, for instance fetch fresh parameters."""

    def _before_run(self) -> None:
        """Prepare for a `run`; usually as for any other use of fresh values."""
        self._before_replicas()

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call `fn` once per replica; usually by `_run_replicas`."""
        raise self._missing("_call_for_each_replica")

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        """Call a step for several inputs; usually by `_run_steps`."""
        raise self._missing("_experimental_run_steps_on_iterator")

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Run `fn` where `var` is; usually by `_run_update`."""
        raise self._missing("_update")

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Run `fn` where non-slot variables are; usually by `_run_update`."""
        raise self._missing("_update_non_slot")

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        """Return where to put variables that belong to no single other one.

        Pass it to `colocate_vars_with` and `update_non_slot`.

        Args:
            var_list: The variables being optimized.

        Spec: EXT-7.
        """
        raise self._missing("non_slot_devices")

    def _state_dict(self) -> dict[str, torch.Tensor]:
        """Return snapshots of everything that is to be in a checkpoint, by name."""
        raise self._no_checkpoints()

    def _load_state_dict(
        self, state: Mapping[str, torch.Tensor], strict: bool
    ) -> Restoration:
        """Replace values by those of a checkpoint, also of what is made later."""
        raise self._no_checkpoints()

    def _no_checkpoints(self) -> UnimplementedError:
        return UnimplementedError(
            f"{type(self._container_strategy()).__name__} has no checkpoints of its "
            "own here: strategies have them whose variables are all in this process. "
            "Keep module.state_dict(), DistributedOptimizer.state_dict() and "
            "Variable.read_value() instead"
        )
