"""The variables that one strategy has on servers, and the update functions that these run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core import device_names
from stratagem._core.assignment import Write
from stratagem._core.contexts import cross_replica, get_strategy
from stratagem._core.device_names import torch_device
from stratagem._core.names import UniqueNames, form_of
from stratagem._core.variable_creation import VariableTraits, initial_tensor
from stratagem._core.variables import Variable
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.task import Settings
from stratagem._parameter_server.variables.partitioning import Partitioning
from stratagem._parameter_server.variables.placement import (
    VariablePlacement,
    placement_named,
    placements,
    server_named,
)
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable, remote_of
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Attachments
from stratagem._tracing.recording import Source
from stratagem._tracing.trace import TracedUpdate, trace
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import name_of_whole
from stratagem_proto.v1.update_program_pb2 import GraphInput, InputBinding

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class RemoteVariables:
    """Creates variables on servers, and reads and writes several at once.

    Attributes:
        partitioning: Says which are divided into shards.
        creation: Makes them exist.
        established: Those that exist. They are kept alive until they are forgotten, since what was
            created on a server keeps its name there.
    """

    def __init__(
        self,
        container_strategy: Callable[[], Strategy],
        membership: Membership,
        store: RemoteStore,
        settings: Settings,
        names: UniqueNames,
    ) -> None:
        self._container_strategy = container_strategy
        self._names = names
        self.store = store
        self.partitioning = Partitioning(settings.variable_partitioner)
        placement = placement_named(settings.placement)(store.servers.used)
        self.creation = RemoteCreation(store, membership, placement, names)
        self.established: list[RemoteVariable] = []

    # Creating.

    def placed(self, device: str, kwargs: dict[str, Any]) -> RemoteVariable:
        """Return a variable of the program, which does not exist yet.

        This process sees its value on `device`; `kwargs` are all arguments of `Variable`.
        """
        traits = VariableTraits(*(kwargs[key] for key in VariableTraits.__dataclass_fields__))
        initial = initial_tensor(kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape"))
        value = initial.detach().to(torch_device(device), copy=True)
        differentiable = value.is_floating_point() or value.is_complex()
        value.requires_grad_(traits.trainable and differentiable)
        other = kwargs.get("colocate_with")
        colocated = None if other is None else self.own(other)
        owner = Owner(shard=kwargs.get("shard"))
        self._describe(traits.name, value, owner)
        moved_to = server_named(device_names.current())
        return self.creation.placed(traits, value, owner, colocated, moved_to)

    def _describe(self, name: str, value: torch.Tensor, owner: Owner) -> None:
        whole, shape = name, value.shape
        if owner.shard is not None:
            whole, shape = name_of_whole(name), torch.Size(owner.shard.shape)
        if owner.shard is None or self._names.origin(whole) is None:
            self._names.describe(whole, form_of(value.dtype, shape))

    def establish(self, variables: Sequence[RemoteVariable]) -> Sequence[RemoteVariable]:
        """Make variables exist, and return those that existed before."""
        kept = self.creation.establish(variables)
        self.established += variables
        return kept

    def placements(self) -> list[VariablePlacement]:
        """Ask the servers where each variable lives, those of optimizers included."""
        listing = self.store.listing()
        return placements(
            {
                f"/job:ps/task:{server}": [info.spec for info in listed.variables]
                for server, listed in listing.items()
            }
        )

    # Reading and writing, by one request for each server, all in flight at once.

    def read(self, variables: Sequence[Variable]) -> list[torch.Tensor]:
        """Return fresh values, through which gradients reach the variables."""
        remotes = [self.own(variable) for variable in variables]
        self.store.refresh(remotes)
        return [remote.leaf for remote in remotes]

    def write(self, write: Write, values: Mapping[Variable, Any]) -> None:
        """Write each its value or `IndexedSlices`, without waiting for the servers."""
        remotes = {self.own(variable): value for variable, value in values.items()}
        self.store.write_behind(
            {remote: remote.writing(write, value) for remote, value in remotes.items()}
        )

    def own(self, variable: Any) -> RemoteVariable:
        """Return a variable of this strategy that is on one server.

        Raises:
            InvalidArgumentError: It is another's, or is in several parts.
        """
        parts = self.own_parts(variable)
        if len(parts) > 1:
            raise InvalidArgumentError(
                f"{variable.name!r} is on the servers in {len(parts)} parts, which "
                "update functions do not change as one; leave it whole by the "
                "strategy's variable_partitioner"
            )
        return parts[0]

    def own_parts(self, variable: Any) -> Sequence[RemoteVariable]:
        """Return the parts of a variable of this strategy.

        Raises:
            InvalidArgumentError: It is another's.
        """
        parts = parts_of(variable)
        own = self._container_strategy()
        if not parts or parts[0].distribute_strategy is not own:
            raise InvalidArgumentError(
                f"this must be a Variable of this strategy, not {variable!r}; pass one "
                "that was created in its scope, of a ShardedVariable one of its "
                "variables"
            )
        for part in parts:
            part.require_remembered()
        return parts


def run_update(
    store: RemoteStore,
    server: int,
    fn: Callable[..., Any],
    variables: Sequence[Variable],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Have a server run `fn(*variables, *args, **kwargs)`, and return what that returned.

    That is a nest of variables, of tensors on the CPU, and of values of Python. The function has to
    write the variables; without any, what it writes belongs to no one variable. One that only reads
    runs here, and may return anything.

    Raises:
        UpdateFunctionError: It cannot be sent to a server.
    """

    def is_hosted(variable: Variable) -> bool:
        remote = remote_of(variable)
        if remote is not None:
            remote.require_remembered()
        return remote is not None and remote.place.server == server

    update = trace(fn, variables, args, kwargs, is_hosted)
    if update.trace.only_reads:
        # In cross-replica context, what it reads is as it is now on its server.
        with cross_replica(get_strategy()):
            return fn(*variables, *args, **kwargs)
    ran = store.servers.call(server, _request(store, update, non_slot=not variables))
    for variable in update.written:
        remote = remote_of(variable)
        if remote is not None:
            remote.outdate()
    return update.result(ran.outputs)


def _request(store: RemoteStore, update: TracedUpdate, non_slot: bool) -> Request[updates.GraphRun]:
    attachments = Attachments()
    bindings = [
        _binding(one.kind, source, attachments, store)
        for one, source in zip(update.program.inputs, update.bindings, strict=True)
    ]
    return updates.run(update.program, bindings, attachments, non_slot)


def _binding(
    kind: GraphInput.Kind, source: Source, attachments: Attachments, store: RemoteStore
) -> InputBinding:
    match source:
        case Variable() if kind != GraphInput.KIND_TENSOR:
            return InputBinding(variable=source.name)
        case Variable():
            return InputBinding(tensor=attachments.add(_present_value(source, store)))
        case torch.Tensor():
            return InputBinding(tensor=attachments.add(source.detach()))
        case bool():
            return InputBinding(flag=source)
        case int():
            return InputBinding(integer=source)
        case float():
            return InputBinding(number=source)


def _present_value(variable: Variable, store: RemoteStore) -> torch.Tensor:
    remote = remote_of(variable)
    if remote is None:
        return variable.value().detach()
    # Not into the variable's own copy: a replica may be using that.
    return store.snapshot(remote)
