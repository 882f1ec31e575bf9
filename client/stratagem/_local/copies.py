"""What strategies share that keep a copy of each variable with each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from stratagem._core.device_names import canonicalize, torch_device
from stratagem._core.distributed_variables.mirrored import MirroredVariable
from stratagem._core.distributed_variables.updating import run_updates
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions
from stratagem._core.values.cross_device_ops import CrossDeviceOps
from stratagem._core.values.distributed_values import Mirrored, PerReplica
from stratagem._core.values.placement import at_destinations, components
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import OptimizerStep, VariableGradients
from stratagem._hosting.modules.adoption import Adoption
from stratagem._input.iterator import DistributedIterator
from stratagem._local.in_process import InProcessExtended
from stratagem._strategies.multi_step import MultiStepContext
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class CopiesExtended(InProcessExtended):
    """A copy of each variable on each replica's device.

    The parameters of modules are such copies themselves: each replica has a leaf
    with storage of its own, and optimizers work on it in place. Where the user
    writes a parameter, the first replica's leaf is the one that counts.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.
        cross_device_ops: How values of several devices are brought together.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps,
    ) -> None:
        super().__init__(container_strategy, devices)
        self._cross_device_ops = cross_device_ops

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    def _united(self, copies: Sequence[LocalVariable]) -> Variable:
        """Return the variable that these copies, one per replica, are."""
        raise self._missing("_united")

    def _host_one(self, adoption: Adoption) -> None:
        parameter = adoption.parameter
        leaves = [
            Parameter(parameter.detach().to(device, copy=True), parameter.requires_grad)
            for device in map(torch_device, self._devices[1:])
        ]
        traits = VariableTraits.of(adoption.name, parameter.requires_grad)
        copies = zip((parameter, *leaves), self._devices, strict=True)
        variable = self._united(
            [LocalVariable.over(leaf, traits, device) for leaf, device in copies]
        )
        self._parameters.add(parameter, variable, adoption.owners, leaves)

    def _before_replicas(self) -> None:
        super()._before_replicas()
        for hosted in self._parameters.written_locally():
            hosted.settle()
            for copy, leaf in zip(hosted.variable.values, hosted.leaves, strict=True):
                assert isinstance(copy, LocalVariable)
                copy.follow(leaf)

    def _apply_gradients(self, step: OptimizerStep) -> None:
        super()._apply_gradients(step)
        for hosted in self._parameters:
            hosted.accept()

    def _reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        pairs = [
            (PerReplica(update.gradients), update.variable)
            for update in step.updates()
            if self._has_all_dense(update)
        ]
        reduced = iter(self._cross_device_ops.batch_reduce(step.reduce_op, pairs))
        return [
            next(reduced) if self._has_all_dense(update) else step.reduced(update)
            for update in step.updates()
        ]

    def _has_all_dense(self, update: VariableGradients) -> bool:
        dense = not any(gradient.is_sparse for gradient in update.gradients)
        return dense and len(update.gradients) == len(self._devices) > 1

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        def reduced(leaf: Any, destination: Any) -> Any:
            parts = components(leaf)
            if parts is None:
                return self._reduce_nest(reduce_op, leaf, destination)
            if isinstance(leaf, Mirrored | MirroredVariable):
                return mean_of_equals(reduce_op, leaf)
            ops, value = self._cross_device_ops, PerReplica(parts)
            return ops.reduce(reduce_op, value, destination, options)

        return at_destinations(reduced, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return super()._broadcast_to(tensor, destinations)
        return self._cross_device_ops.broadcast(tensor, destinations)

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        return self._run_steps(fn, iterator, iterations, initial_loop_values)

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        owner = getattr(var, "distribute_strategy", None)
        strategy = self._container_strategy()
        if owner is not strategy:
            raise InvalidArgumentError(
                "`update` takes a variable that was created in this strategy's scope, "
                f"not {var!r}"
            )
        copies = self.value_container(var).values
        calls = [partial(fn, copy) for copy in copies]
        return run_updates(strategy, self._devices, calls, args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        if not isinstance(colocate_with, tuple):
            raise InvalidTypeError(
                "`update_non_slot` takes a tuple of devices, as `non_slot_devices` "
                f"returns it, not {colocate_with!r}"
            )
        devices = [canonicalize(device) for device in colocate_with]
        strategy, calls = self._container_strategy(), [fn] * len(devices)
        return run_updates(strategy, devices, calls, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return tuple(self._devices)

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if colocate_with_variable != self.non_slot_devices(()):
            super()._validate_colocate_with(colocate_with_variable)


def mean_of_equals(op: ReduceOp, value: Any) -> Any:
    """Return the mean of a value whose copies are equal.

    Raises:
        InvalidArgumentError: Another reduction is asked for.
    """
    if op is ReduceOp.MEAN:
        return value
    raise InvalidArgumentError(
        f"Cannot reduce {value!r} by {op}: its copies are equal by definition, so that "
        "their sum is probably not meant; use ReduceOp.MEAN, or multiply it yourself"
    )
