"""The variables of one strategy: creating and finding them, and changing several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stratagem._checkpoints.files import origins_of
from stratagem._cluster.tasks import Membership
from stratagem._core import device_names
from stratagem._core.assignment import Write
from stratagem._core.contexts import cross_replica, get_strategy
from stratagem._core.device_names import torch_device
from stratagem._core.names import Origin, UniqueNames, form_of
from stratagem._core.variable_creation import VariableTraits, initial_tensor, require_dense
from stratagem._core.variables import Variable
from stratagem._hosting.adoption import Adoption
from stratagem._parameter_server.hosting.attachment import Attachment, EarlierRun, follow
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.hosting.task import Settings
from stratagem._parameter_server.variables.shards import (
    Demand,
    Partitioning,
    Place,
    Placement,
    VariablePlacement,
    placement_named,
    placements,
    server_device,
    server_named,
    shard_name,
)
from stratagem._parameter_server.variables.variable import (
    NO_OWNER,
    Owner,
    RemoteVariable,
    Shard,
    SplitVariable,
    parts_of,
    remote_of,
)
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Attachments
from stratagem._tracing.recording import Source
from stratagem._tracing.trace import TracedUpdate, trace
from stratagem_proto.errors import AttachmentError, InvalidArgumentError
from stratagem_proto.protocol import name_of_whole
from stratagem_proto.v1.update_program_pb2 import GraphInput, InputBinding

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

Kind = TypeVar("Kind", bound=RemoteVariable)


class RemoteCreation:
    """Makes the variables of one strategy exist on the servers."""

    def __init__(
        self,
        store: RemoteStore,
        membership: Membership,
        placement: Placement,
        names: UniqueNames,
    ) -> None:
        self._store = store
        self._creates = membership.creates
        self._trains = membership.trains
        self._earlier = EarlierRun(membership.name, store)
        self._placement = placement
        self._attachment = Attachment(membership, store.listing, store.peer_seconds)
        self._names = names
        self._mine: dict[str, Origin] = {}
        self._uses = 0

    def placed(
        self,
        traits: VariableTraits,
        value: torch.Tensor,
        owner: Owner = NO_OWNER,
        colocated: RemoteVariable | None = None,
        moved_to: int | None = None,
    ) -> RemoteVariable:
        """Return the next variable; it has its place, but does not exist yet.

        Args:
            traits: What it is called and how it is meant to be used.
            value: Its initial value, which becomes the copy in this process.
            owner: What it belongs to.
            colocated: Variable whose server it is to share.
            moved_to: Index of a server that it goes to instead of its own.

        Raises:
            InvalidArgumentError: There is no such server.
            FailedPreconditionError: Device filters hide its server from this task.
        """
        server = None if colocated is None else colocated.place.server
        place = self._placement.next(Demand(value.nbytes, server))
        if moved_to is not None:
            place = replace(place, server=self._existing(moved_to))
        self._store.servers.require_visible(place.server)
        return self._with_origin(RemoteVariable(self._store, place, traits, value, owner))

    def made(
        self,
        make: Callable[..., Kind],
        traits: VariableTraits,
        value: torch.Tensor,
        owner: Owner,
        demand: Demand,
    ) -> Kind:
        """Return the next variable, of a kind of its own; otherwise as `placed`.

        `make` takes the store, the place, and the arguments that follow here.
        """
        place = self._placement.next(demand)
        self._store.servers.require_visible(place.server)
        return self._with_origin(make(self._store, place, traits, value, owner))

    def _with_origin(self, variable: Kind) -> Kind:
        origin = self._names.origin
        variable.origin = origin(variable.name) or origin(name_of_whole(variable.name))
        return variable

    def _existing(self, server: int) -> int:
        count = len(self._store.servers)
        if server >= count:
            raise InvalidArgumentError(
                f"a creator places a variable on {server_device(server)}, but there "
                f"are {count} parameter servers"
            )
        return server

    def establish(self, variables: Sequence[RemoteVariable]) -> Sequence[RemoteVariable]:
        """Make placed variables exist; afterwards their copies have their values.

        What an earlier run of the same program has left on the servers keeps its values.

        Returns:
            Those that existed before.

        Raises:
            AlreadyExistsError: This task creates, and a server has one of that name.
            AttachmentError: This task attaches, and the chief's variables differ or do not come in
                time; or it creates, and the servers hold variables of another program.
        """
        if self._creates:
            kept = self._create(variables)
        else:
            self._attach(variables)
            kept = variables
        self._mine |= origins_of(variable.spec for variable in variables)
        self._uses = 0
        return kept

    def forget(self, variables: Sequence[RemoteVariable]) -> None:
        """Note that the servers have deleted variables. Their places are not given again."""
        for variable in variables:
            self._mine.pop(variable.name, None)
            self._mine.pop(name_of_whole(variable.name), None)
        ordinals = {variable.place.ordinal for variable in variables}
        self._attachment.forget(ordinals)
        self._earlier.forget(ordinals)

    def before_use(self) -> None:
        """Check that this program has made all of the variables that only their order tells apart.

        Called before replicas run, and for other uses. Who trains has what the chief has by the
        first use; later a look would wait for its pushes in flight. For others the chief may make
        more at any time, so they look at the first, second, fourth, eighth use, and so on.

        Raises:
            AttachmentError: The chief, or an earlier run of his, has more of them.
        """
        self._uses += 1
        looks = self._uses == 1 if self._trains else not self._uses & (self._uses - 1)
        if not self._mine or not looks:
            return
        if self._creates:
            self._earlier.require_all(self._mine, self._names.phase)
        else:
            # Who trains runs the chief's program, which may have made more since.
            self._attachment.require_all(self._mine, self._names.phase if self._trains else None)

    def _create(self, variables: Sequence[RemoteVariable]) -> Sequence[RemoteVariable]:
        kept = self._earlier.kept(variables)
        names = {variable.name for variable in kept}
        others = [one for one in variables if one.name not in names]
        self._earlier.require_unused(others)
        created = self._store.training.creatable(others)
        self._earlier.report(kept, len(created), len(others) - len(created))
        self._store.create(created)
        self._earlier.take(variables)
        self._store.refresh(kept)
        return kept

    def _attach(self, variables: Sequence[RemoteVariable]) -> None:
        found = self._attachment.attach([variable.spec for variable in variables], self._mine)
        follow(variables, found)
        for variable, one in zip(variables, found, strict=True):
            if self._trains:
                _require_same_server(variable, one.server)
            self._store.servers.require_visible(one.server)
            if not self._trains:
                variable.place = Place(one.server, one.spec.ordinal)
        if not self._trains:
            # Who trains runs the chief's program, which warns.
            wanted = origins_of(variable.spec for variable in variables)
            self._names.warn_of(self._attachment.doubtful(wanted))
        self._store.refresh(variables)


def _require_same_server(variable: RemoteVariable, server: int) -> None:
    if variable.place.server != server:
        raise AttachmentError(
            f"variable {variable.name!r} was created on {server_device(server)}, but "
            f"this worker expects it on {variable.device_name}; run the same program "
            "on all workers, with the same list of servers and the same device filters",
            variable=variable.name,
        )


def placed_parameter(
    creation: RemoteCreation, partitioning: Partitioning, adoption: Adoption
) -> RemoteVariable | SplitVariable:
    """Return the variable of a parameter, which does not exist yet."""
    parameter, path = adoption.parameter, adoption.module_path
    require_dense(parameter, f"parameter {adoption.name!r} of {path}")
    traits = VariableTraits.with_defaults(adoption.name, parameter.requires_grad)
    layout = partitioning.layout(parameter.shape, parameter.dtype)
    if len(layout.sizes) == 1:
        return creation.placed(traits, parameter, Owner(path))
    parts = [
        creation.placed(
            replace(traits, name=shard_name(adoption.name, number)),
            rows.select(parameter.detach()),
            Owner(path, Shard(rows, tuple(parameter.shape))),
        )
        for number, rows in enumerate(layout.shards)
    ]
    return SplitVariable(traits, parts, layout)


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
