"""What each replica sees of plain modules: its own leaves of parameters, and its own buffers."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Sequence, ValuesView
from copy import deepcopy
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from stratagem._core.contexts import current_replica_id
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.other_steps import watch_plain_optimizers
from stratagem._hosting.torch_patches import follow_replica
from stratagem_proto.errors import FailedPreconditionError, InternalError

Value = TypeVar("Value")


class ReplicaView(dict[str, Value]):
    """A `dict` that is read through the `__getitem__` and `get` of its subclass.

    It is one because torch checks for it. Copies of it, and so copies of the module, are plain
    dicts that know of no strategy.
    """

    def __iter__(self) -> Iterator[str]:
        # Defined so that dict(self) and {**self} do not look into the base class.
        return super().__iter__()

    def items(self) -> ItemsView[str, Value]:  # type: ignore[override] # not dict's own
        return ItemsView(self)

    def values(self) -> ValuesView[Value]:  # type: ignore[override] # not dict's own
        return ValuesView(self)

    def copy(self) -> dict[str, Value]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Value]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (self.copy(),)


_Buffers = dict[str, "Tensor | None"]


class BufferRegistry:
    """The buffers, such as running statistics, of one strategy's modules.

    They are no variables: each replica changes its own as it likes. What lasts are those of the
    first replica, the module's own; the others start each run as copies of them, as in
    `torch.nn.parallel.DistributedDataParallel`. They belong to their modules, and go with these.

    Args:
        devices: The device of each replica of this process.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._others = tuple(devices[1:])
        self._shown: list[ref[ReplicaBuffers]] = []

    def add(self, modules: Iterable[nn.Module]) -> None:
        """Let modules have buffers for each replica; their parts are left alone."""
        if not self._others:
            return
        for module in modules:
            if module._buffers and not isinstance(module._buffers, ReplicaBuffers):
                buffers = ReplicaBuffers(module._buffers, self._others)
                module._buffers = buffers
                living = [one for one in self._shown if one() is not None]
                self._shown = [*living, ref(buffers)]

    def follow_first(self) -> None:
        """Let the buffers of all replicas be equal to those of the first one."""
        for shown in self._shown:
            if (buffers := shown()) is not None:
                buffers.follow_first()

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferRegistry:
        """Return an empty one: modules stay with the strategy they were built in."""
        return BufferRegistry((torch.device("cpu"), *self._others))


class ReplicaBuffers(ReplicaView["Tensor | None"]):
    """The `_buffers` of a module, with the current replica's tensors as values.

    Args:
        buffers: The buffers of the module until now.
        others: The devices of the replicas after the first.
    """

    def __init__(self, buffers: _Buffers, others: Sequence[torch.device]) -> None:
        super().__init__(buffers)
        self._others: list[tuple[torch.device, _Buffers]] = [(device, {}) for device in others]
        self.follow_first()

    def follow_first(self) -> None:
        """Copy the first replica's buffers to the others."""
        for device, own in self._others:
            for key in [key for key in own if key not in self]:
                del own[key]
            for key, value in dict.items(self):
                own[key] = _copied(value, own.get(key), device)

    def _own(self) -> _Buffers:
        index = current_replica_id() or 0
        return self._others[index - 1][1] if index else {}

    def __getitem__(self, key: str) -> Tensor | None:
        own = self._own()
        return own[key] if key in own else super().__getitem__(key)

    def __setitem__(self, key: str, value: Tensor | None) -> None:
        own = self._own()
        if key in own:
            own[key] = value
        else:
            super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        return self._own().get(key, value)


def _copied(value: Tensor | None, earlier: Tensor | None, device: torch.device) -> Tensor | None:
    if value is None:
        return None
    fits = earlier is not None and earlier.shape == value.shape
    if earlier is None or not fits or earlier.dtype != value.dtype:
        return value.detach().to(device, copy=True)
    with torch.no_grad():
        return earlier.copy_(value)


class ReplicaParameters(ReplicaView["Parameter | None"]):
    """The `_parameters` of a module, with the current replica's leaves as values.

    Args:
        parameters: The parameters of the module until now.
    """

    def __init__(self, parameters: dict[str, Parameter | None]) -> None:
        super().__init__()
        self._hosted: dict[str, HostedParameter] = {}
        for key, parameter in parameters.items():
            self[key] = parameter

    def __getitem__(self, key: str) -> Parameter | None:
        hosted = self._hosted.get(key)
        return super().__getitem__(key) if hosted is None else hosted.leaf()

    def __setitem__(self, key: str, parameter: Parameter | None) -> None:
        # torch.func.functional_call takes a leaf out, puts a tensor in, and then the leaf back.
        hosted = None if parameter is None else hosted_parameter(parameter)
        if hosted is None:
            self._hosted.pop(key, None)
            super().__setitem__(key, parameter)
        else:
            self._hosted[key] = hosted
            super().__setitem__(key, hosted.parameter)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._hosted.pop(key, None)

    def get(self, key: str, default: Any = None) -> Any:
        hosted = self._hosted.get(key)
        return super().get(key, default) if hosted is None else hosted.leaf()

    def pop(self, key: str, *default: Any) -> Any:
        if default and key not in self:
            return default[0]
        parameter = self[key]
        del self[key]
        return parameter


Owner = tuple[nn.Module, str]
"""A module and the key in its `_parameters`."""


class ParameterRegistry:
    """The parameters that one strategy hosts, in the order of their adoption.

    It keeps none of them alive: a parameter owns what hosts it.

    Args:
        devices: The device of each replica of this process.

    Attributes:
        devices: Likewise.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices: tuple[torch.device, ...] = tuple(devices)
        self._references: list[ref[HostedParameter]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterRegistry:
        """Return an empty one: modules stay with the strategy they were built in."""
        return ParameterRegistry(self.devices)

    def add(
        self,
        parameter: Parameter,
        variable: Variable,
        owners: Sequence[Owner],
        others: Sequence[Parameter] | None = None,
    ) -> HostedParameter:
        """Let a parameter follow a variable, whose value it has.

        Args:
            parameter: The user's parameter.
            variable: The variable.
            owners: Where modules have the parameter; tied ones have several.
            others: Leaves with storage of their own for the replicas after the first; by default
                leaves are made, which share storage where they can.

        Raises:
            InternalError: The parameter is hosted already.
        """
        if hosted_parameter(parameter) is not None:
            raise InternalError(f"a parameter is hosted twice: {variable.name!r}")
        hosted = HostedParameter(variable, parameter, self.devices, others)
        return self.host(hosted, owners)

    def host(self, hosted: HostedParameter, owners: Sequence[Owner]) -> HostedParameter:
        """Take in a parameter that follows a variable; `owners` as for `add`."""
        watch_plain_optimizers()
        living = [one for one in self._references if one() is not None]
        self._references = [*living, ref(hosted)]
        self.tie(hosted, owners)
        return hosted

    def tie(self, hosted: HostedParameter, owners: Sequence[Owner]) -> None:
        """Note further places where modules have a hosted parameter.

        With one replica the modules stay as they are.
        """
        for module, key in owners:
            hosted.add_owner(module, key)
            if len(self.devices) > 1:
                # Outside of replicas they are the user's own parameters, as ever.
                module._parameters = ReplicaParameters(module._parameters)
                follow_replica(module)

    def written_locally(self) -> list[HostedParameter]:
        """Return those that the user wrote since they were last accepted.

        Changes that leave the value alone (freezing, moving to another device) are passed on to the
        other replicas' leaves here.
        """
        found = [reference() for reference in self._references]
        return [hosted for hosted in found if hosted is not None and hosted.written_locally()]

    @property
    def _entries(self) -> list[HostedParameter]:
        found = [reference() for reference in self._references]
        return [hosted for hosted in found if hosted is not None]

    def remove(self, hosted: HostedParameter) -> None:
        """Leave a parameter to the program from now on."""
        self._references = [one for one in self._references if one() is not hosted]
        hosted.end()

    def carry_outside_changes(self) -> None:
        """Carry what was done to gradients and hooks since replicas ran to those of all of them.

        This, and what follows, is for several replicas, which have leaves of their own; nothing has
        to follow a lone one.
        """
        for hosted in self._entries:
            hosted.outside_changes.carry(hosted.leaves)

    def note_replicas_work(self) -> None:
        """Take gradients and hooks as they are for the work of replicas."""
        for hosted in self._entries:
            hosted.outside_changes.note(hosted.leaves)

    def require_gradients_of_replicas(self, variables: Iterable[Variable]) -> None:
        """Check that all replicas have what is to be applied to variables.

        Raises:
            FailedPreconditionError: The program has changed the gradient of the first one alone.
        """
        changed = [
            hosted
            for hosted in self._entries
            if hosted.outside_changes.gradient_changed(hosted.parameter)
        ]
        stepped = {id(variable) for variable in variables} if changed else ()
        for hosted in changed:
            if id(hosted.variable) in stepped:
                raise FailedPreconditionError(
                    f"the gradient of {hosted.name!r} was changed outside of run(), where it is "
                    f"that of the first of {len(self.devices)} replicas alone; change it in the "
                    "function that strategy.run() is given, before optimizer.step(), or clear it "
                    "by zero_grad()",
                    variable=hosted.name,
                )

    def __iter__(self) -> Iterator[HostedParameter]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
