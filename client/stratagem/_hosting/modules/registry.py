"""The parameters of plain modules that one strategy hosts, as each replica sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from stratagem._core.variables import Variable
from stratagem._hosting.modules.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.modules.plain_optimizers import watch_plain_optimizers
from stratagem._hosting.modules.replica_buffers import ReplicaView
from stratagem_proto.errors import FailedPreconditionError, InternalError


def follow_replica(module: nn.Module) -> None:
    """Let a recurrent module take its weights from its parameters at each use.

    `nn.RNNBase` caches them in lists, one per module object, and rebuilds the lists where they
    differ from the parameters. Several replicas would do so at each turn, and in each other's
    forward when they run concurrently.
    """
    if isinstance(module, nn.RNNBase) and not isinstance(module, Following):
        for cache_name in ("_flat_weights", "_flat_weight_refs"):
            del module.__dict__[cache_name]
        module.__class__ = _following(type(module))


class Following:
    """Mixin that computes what `nn.RNNBase` caches."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor | None]) -> None:
        """Nothing is cached."""

    @property
    def _flat_weight_refs(self) -> list[ref[Tensor] | None]:
        return [None if w is None else ref(w) for w in self._flat_weights]

    @_flat_weight_refs.setter
    def _flat_weight_refs(self, weights: list[ref[Tensor] | None]) -> None:
        """Nothing is cached."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flat_weights": self._flat_weights}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Copies are of torch's own class, and know of no replicas.
        plain = plain_class(self)
        return plain.__new__, (plain,), self.__getstate__()


def plain_class(module: object) -> type:
    """Return the class that a module had before it followed replicas."""
    cls = type(module)
    return cls.__mro__[2] if isinstance(module, Following) else cls


_kinds: dict[type[nn.RNNBase], type[nn.RNNBase]] = {}


def _following(kind: type[nn.RNNBase]) -> type[nn.RNNBase]:
    if kind not in _kinds:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _kinds[kind] = type(kind.__name__, (Following, kind), names)
    return _kinds[kind]


def show_leaves(module: nn.Module) -> None:
    """Let the module's hosted parameters be the current replica's leaves.

    Outside of replicas they are the user's own parameters, as ever.
    """
    module._parameters = ReplicaParameters(module._parameters)
    follow_replica(module)


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
                show_leaves(module)

    def written_locally(self) -> list[HostedParameter]:
        """Return those that the user wrote since they were last accepted.

        Changes that leave the value alone (freezing, moving to another device) are passed on to the
        other replicas' leaves here.
        """
        return [hosted for hosted in self._entries if hosted.written_locally()]

    @property
    def _in_several_replicas(self) -> Sequence[HostedParameter]:
        """All of them where replicas have leaves of their own; nothing has to follow a lone one."""
        return self._entries if len(self.devices) > 1 else ()

    @property
    def _entries(self) -> list[HostedParameter]:
        found = [reference() for reference in self._references]
        return [hosted for hosted in found if hosted is not None]

    def remove(self, hosted: HostedParameter) -> None:
        """Leave a parameter to the program from now on."""
        self._references = [one for one in self._references if one() is not hosted]
        hosted.end()

    def carry_outside_changes(self) -> None:
        """Carry what was done to gradients and hooks since replicas ran to those of all of them."""
        for hosted in self._in_several_replicas:
            hosted.outside_changes.carry(hosted.leaves)

    def note_replicas_work(self) -> None:
        """Take gradients and hooks as they are for the work of replicas."""
        for hosted in self._in_several_replicas:
            hosted.outside_changes.note(hosted.leaves)

    def require_gradients_of_replicas(self, variables: Iterable[Variable]) -> None:
        """Check that all replicas have what is to be applied to variables.

        Raises:
            FailedPreconditionError: The program has changed the gradient of the first one alone.
        """
        changed = [
            hosted
            for hosted in self._in_several_replicas
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
