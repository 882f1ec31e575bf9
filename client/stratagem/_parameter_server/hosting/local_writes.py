"""What becomes of the user's own writes to parameters that servers host."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._hosting.modules.hosted_parameter import HostedParameter
from stratagem._hosting.modules.registry import ParameterRegistry
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import ContextError, InvalidArgumentError
from stratagem_proto.v1.parameter_server_pb2 import ASSIGN_MODE_SET


def written_in(store: RemoteStore, parameters: ParameterRegistry) -> list[HostedParameter]:
    """Return what the user wrote since the parameters were last accepted.

    Raises:
        InvalidArgumentError: A parameter has another shape or dtype than before.
    """
    written = store.pulls.apart(parameters.written_locally)
    for hosted in written:
        _require_same(hosted)
    return written


def carry(store: RemoteStore, written: Sequence[HostedParameter]) -> None:
    """Write to the servers what the user wrote."""
    writings = {}
    for hosted in written:
        for part in parts_of(hosted.variable):
            value = part.leaf.detach()
            writings[part] = Writing(part.name, ASSIGN_MODE_SET, value)
    versions = store.write(writings)
    for hosted in written:
        hosted.accept_everywhere()
        for part in parts_of(hosted.variable):
            part.accept(versions[part.name])


def refuse_writes_in_replicas(store: RemoteStore, parameters: ParameterRegistry) -> None:
    """Check that a replica function left the parameters as they were.

    Raises:
        ContextError: It did not. The parameters get the variables' values back before the next
            step.
    """
    written = store.pulls.apart(parameters.written_locally)
    for hosted in written:
        for part in parts_of(hosted.variable):
            part.distrust()
    if written:
        raise ContextError(
            f"parameter {written[0].name!r} was written in a replica, where each step "
            "would lose it again; write parameters outside of run(), which a loop with "
            "one replica does not need, or change them by an optimizer or by "
            "extended.update()"
        )


def _require_same(hosted: HostedParameter) -> None:
    parameter, variable = hosted.parameter, hosted.variable
    if parameter.shape != variable.shape or parameter.dtype != variable.dtype:
        raise InvalidArgumentError(
            f"parameter {hosted.name!r} now has shape {tuple(parameter.shape)} and "
            f"dtype {parameter.dtype}, but its variable on {variable.device_name} has "
            f"{tuple(variable.shape)} and {variable.dtype}; change both before the "
            "scope closes",
            variable=hosted.name,
        )
