"""Bringing variables into being: the chief creates them, the others attach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from stratagem._checkpoints.files import origins_of
from stratagem._cluster.tasks import Membership
from stratagem._core.names import Origin, UniqueNames
from stratagem._core.variable_creation import VariableTraits, require_dense
from stratagem._hosting.adoption import Adoption
from stratagem._parameter_server.hosting.attachment import Attachment, EarlierRun, follow
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.partitioning import Partitioning, shard_name
from stratagem._parameter_server.variables.placement import Demand, Place, Placement, server_device
from stratagem._parameter_server.variables.split_variable import SplitVariable
from stratagem._parameter_server.variables.variable import NO_OWNER, Owner, RemoteVariable, Shard
from stratagem_proto.errors import AttachmentError, InvalidArgumentError
from stratagem_proto.protocol import name_of_whole

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
        return self._told(RemoteVariable(self._store, place, traits, value, owner))

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
        return self._told(make(self._store, place, traits, value, owner))

    def _told(self, variable: Kind) -> Kind:
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
