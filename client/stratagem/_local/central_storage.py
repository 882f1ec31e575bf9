"""One copy of each variable on one device, replicas on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from stratagem._core.device_names import (
    canonicalize,
    list_logical_devices,
    torch_device,
)
from stratagem._core.distributed_variables.aggregating import AggregatingVariable
from stratagem._core.distributed_variables.mirrored import created_copies
from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.enums import VariableSynchronization
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.modules.adoption import Adoption
from stratagem._hosting.strategies.local_updates import LocalUpdates
from stratagem._local.in_process import InProcessExtended
from stratagem._strategies.devices import distinct_devices, require_local
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class CentralStorageStrategy(Strategy):
    """Variables on one device of this machine, replicas on several.

    Gradients are reduced and applied where the variables are, and the parameters of
    modules follow them on the replicas' devices. Variables may be in the memory of the
    host: `CentralStorageStrategy(["GPU:0", "GPU:1"], "CPU:0")`. Buffers, such as
    running statistics, are each replica's own; the first one's last. So is each
    replica's copy of a variable made with `synchronization=ON_READ`, on its device.

    Args:
        compute_devices: Devices of the replicas; by default all GPUs, or without any
            `CPU:0`.
        parameter_device: Device of the variables; by default the only compute device
            if there is one, else `CPU:0`.

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
    """Return where variables go if nobody says so. Spec: CS-2, PS1-1.

    Args:
        devices: Full names of the replicas' devices.
    """
    return devices[0] if len(devices) == 1 else "/device:CPU:0"


class CentralStorageExtended(LocalUpdates, InProcessExtended):
    """The `extended` of a `CentralStorageStrategy`.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.
        parameter_device: The variables' device, as the user wrote it.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        devices: Sequence[str],
        parameter_device: str | torch.device,
    ) -> None:
        super().__init__(container_strategy, devices)
        self._parameter_device = str(parameter_device)
        self._home = canonicalize(parameter_device)

    @property
    def worker_devices(self) -> Sequence[str]:
        """The replicas' devices, as a list. Spec: CS-3."""
        return list(self._devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The variables' device, as it was given. Spec: CS-3."""
        return (self._parameter_device,)

    @property
    def experimental_between_graph(self) -> bool:
        return True

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

    def _host_one(self, adoption: Adoption) -> None:
        parameter = adoption.parameter
        traits = VariableTraits.of(adoption.name, parameter.requires_grad)
        leaf = self._at_home(parameter)
        variable = LocalVariable.over(leaf, traits, self._home)
        variable._join(self._container_strategy())
        self._parameters.add(parameter, variable, adoption.owners)

    def _at_home(self, parameter: Parameter) -> Parameter:
        """Return the parameter itself if it is on the variables' device, or a copy."""
        home = torch_device(self._home)
        if parameter.device == home:
            return parameter
        return Parameter(parameter.detach().to(home), parameter.requires_grad)

    def _before_replicas(self) -> None:
        super()._before_replicas()
        for hosted in self._parameters.written_locally():
            assert isinstance(hosted.variable, LocalVariable)
            hosted.variable.follow(self._at_home(hosted.parameter))
            hosted.settle()
        self._follow_variables()

    def _apply_gradients(self, step: OptimizerStep) -> None:
        super()._apply_gradients(step)
        self._follow_variables()

    def _follow_variables(self) -> None:
        for hosted in self._parameters:
            hosted.follow_variable()

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
                f"`update` changes a variable: its first argument must be a Variable, "
                f"not {var!r}"
            )
        return super()._update(var, fn, args, kwargs, group)

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
        return super()._update_non_slot(colocate_with, fn, args, kwargs, group)
