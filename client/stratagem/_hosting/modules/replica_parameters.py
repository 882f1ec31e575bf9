"""Modules that show each replica its own leaves."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import Parameter

from stratagem._hosting.modules.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.modules.recurrent import follow_replica
from stratagem._hosting.modules.replica_view import ReplicaView


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
