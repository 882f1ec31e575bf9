"""One copy of each variable on one device, with a single replica there or several elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from stratagem._core import device_names
from stratagem._core.device_names import (
    canonicalize,
    distinct_devices,
    list_logical_devices,
    require_local,
    torch_device,
)
from stratagem._core.distributed_variables import AggregatingVariable, SyncOnReadVariable
from stratagem._core.options import CommunicationOptions, ReduceOp, VariableSynchronization
from stratagem._core.reduction import ReductionToOneDevice
from stratagem._core.update_functions import run_updates, smallest_by_name
from stratagem._core.variable_creation import NextCreator, VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._gradients import OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.default_strategy import OneReplicaExtended
from stratagem._input.iterator import DistributedIterator
from stratagem._local.hosting import CopiesHosting, LocalHosting
from stratagem._local.mirrored import created_copies
from stratagem._local.one_process import OneProcessStrategy
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class OneDeviceStrategy(OneProcessStrategy):
    """Variables and the only replica on one device.

    A way to try code that is written for several replicas: it takes the same paths.

    Args:
        device: The device, for instance "CPU:0", "cuda:1" or a `torch.device`.

    Raises:
        InvalidArgumentError: It names no device of this process.

    Spec: OD-1 to OD-4.
    """

    __module__ = "stratagem"

    def __init__(self, device: str | torch.device) -> None:
        super().__init__(_OneDeviceExtended(self, distinct_devices([device])))


class _OneDeviceExtended(OneReplicaExtended):
    def __init__(self, container_strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        ops = ReductionToOneDevice()
        self._hosting = CopiesHosting(self, devices, ops, self._united)

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    def _replica_devices(self) -> Sequence[Any]:
        return self._devices

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        return self._run_steps(fn, iterator, iterations, initial_loop_values)

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        kwargs.pop("colocate_with", None)
        return next_creator(**{**kwargs, "device": self._devices[0]})

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        return self._run_update(self._devices[0], fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return self._devices

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if colocate_with_variable != self._devices:
            super()._validate_colocate_with(colocate_with_variable)

    def _united(self, copies: Sequence[LocalVariable]) -> Variable:
        (variable,) = copies
        variable._join(self._container_strategy())
        return variable


class CentralStorageStrategy(OneProcessStrategy):
    """Variables on one device of this machine, replicas on several.

    Gradients are reduced and applied where the variables are, and the parameters of modules follow
    them on the replicas' devices. Variables may be in the memory of the
    host: `CentralStorageStrategy(["GPU:0", "GPU:1"], "CPU:0")`. Buffers, such as running
    statistics, are each replica's own; the first one's last. So is each replica's copy of a
    variable made with `synchronization=ON_READ`, on its device.

    Args:
        compute_devices: Devices of the replicas; by default all GPUs, or without any `CPU:0`.
        parameter_device: Device of the variables; by default the only compute device if there is
            one, else `CPU:0`.

    Raises:
        InvalidArgumentError: A device is named twice, or is none of this process.

    Spec: CS-1 to CS-5.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        compute_devices: Sequence[str | torch.device] | None = None,
        parameter_device: str | torch.device | None = None,
    ) -> None:
        chosen = compute_devices or list_logical_devices("GPU") or ("CPU:0",)
        devices = distinct_devices(chosen)
        if parameter_device is None:
            parameter_device = default_parameter_device(devices)
        require_local([parameter_device])
        super().__init__(CentralStorageExtended(self, devices, parameter_device))


def default_parameter_device(devices: Sequence[str]) -> str:
    """Return the device of variables, given those of replicas. Spec: CS-2, PS1-1."""
    return devices[0] if len(devices) == 1 else "/device:CPU:0"


class HomeHosting(LocalHosting):
    """Keeps the variables of parameters on one device, which the parameters follow."""

    def __init__(self, extended: StrategyExtended, devices: Sequence[str], home: str) -> None:
        super().__init__(extended, [*map(torch_device, devices)])
        self._home = home

    def host_one(self, adoption: Adoption) -> None:
        parameter = adoption.parameter
        traits = VariableTraits.with_defaults(adoption.name, parameter.requires_grad)
        leaf = self._at_home(parameter)
        variable = LocalVariable.over(leaf, traits, self._home)
        variable._join(self._extended._container_strategy())
        self.parameters.add(parameter, variable, adoption.owners)

    def _at_home(self, parameter: Parameter) -> Parameter:
        """Return the parameter itself if it is on the variables' device, or a copy."""
        home = torch_device(self._home)
        if parameter.device == home:
            return parameter
        return Parameter(parameter.detach().to(home), parameter.requires_grad)

    def before_replicas(self) -> None:
        super().before_replicas()
        for hosted in self.parameters.written_locally():
            assert isinstance(hosted.variable, LocalVariable)
            hosted.variable.follow(self._at_home(hosted.parameter))
            hosted.accept_everywhere()
        self._follow_variables()

    def apply_gradients(self, step: OptimizerStep) -> None:
        super().apply_gradients(step)
        self._follow_variables()

    def _follow_variables(self) -> None:
        for hosted in self.parameters:
            hosted.follow_variable()


class CentralStorageExtended(StrategyExtended):
    """The `extended` of a `CentralStorageStrategy`."""

    _hosting: HomeHosting
    _hosting_class: type[HomeHosting] = HomeHosting

    def __init__(
        self,
        container_strategy: Strategy,
        devices: Sequence[str],
        parameter_device: str | torch.device,
    ) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        self._parameter_device = str(parameter_device)
        self._home = canonicalize(parameter_device)
        self._hosting = self._hosting_class(self, devices, self._home)

    @property
    def experimental_between_graph(self) -> bool:
        return True

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    @property
    def worker_devices(self) -> Sequence[str]:
        """The replicas' devices, as a list. Spec: CS-3."""
        return list(self._devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The variables' device, as it was given. Spec: CS-3."""
        return (self._parameter_device,)

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return self._reduce_nest(reduce_op, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return self._place_value(tensor, destinations)

    def _update_config_proto(self, config: ConfigProto) -> None:
        config.isolate_session_state = True

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        on_read = kwargs["synchronization"] is VariableSynchronization.ON_READ
        if on_read and len(self._devices) > 1:
            return self._create_for_replicas(next_creator, kwargs)
        variable = next_creator(**{"device": self._home, **kwargs})
        first, *others = map(torch_device, self._devices)
        if not others and variable.device == first:
            return variable
        return AggregatingVariable(self._container_strategy(), variable)

    def _create_for_replicas(
        self, next_creator: NextCreator, kwargs: dict[str, Any]
    ) -> SyncOnReadVariable:
        """Create a variable of which each replica writes its own copy. Spec: VAR-20."""
        kwargs.pop("colocate_with", None)
        home, *others = self._devices
        first = next_creator(**{**kwargs, "device": home})
        copies = created_copies(first, next_creator, others, kwargs)
        return SyncOnReadVariable(self._container_strategy(), copies)

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        if not isinstance(var, Variable):
            raise InvalidArgumentError(
                f"`update` changes a variable: its first argument must be a Variable, not {var!r}"
            )
        if isinstance(var, SyncOnReadVariable):
            copies = zip(self._devices, var.values, strict=True)
            calls = [(device, partial(fn, copy)) for device, copy in copies]
            return run_updates(self._container_strategy(), calls, args, kwargs, group, var)
        copy = var.only_copy if isinstance(var, AggregatingVariable) else var
        return self._update_non_slot(var, partial(fn, copy), args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        if not isinstance(colocate_with, Variable | torch.Tensor):
            raise InvalidTypeError(
                "`update_non_slot` takes a variable, as `non_slot_devices` returns it, "
                f"not {colocate_with!r}"
            )
        device = getattr(colocate_with, "device_name", self._current_device())
        return self._run_update(device, fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        return smallest_by_name(var_list)
