"""A variable that lives on a parameter server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch

from stratagem._checkpoints.files import message_of
from stratagem._core.assignment import Write
from stratagem._core.contexts import current_replica_id
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.names import Origin
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variable_creation import VariableTraits, operand
from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.placement import Place, server_device
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import AskedRows, Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.division import PartRows
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    Partition,
    VariableSpec,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    ASSIGN_MODE_DIVIDE,
    ASSIGN_MODE_MAXIMUM,
    ASSIGN_MODE_MINIMUM,
    ASSIGN_MODE_MULTIPLY,
    ASSIGN_MODE_SET,
    ASSIGN_MODE_SUBTRACT,
    AssignMode,
)
from stratagem_proto.versions import is_newer
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of, spec_of

if TYPE_CHECKING:
    from stratagem._hosting.hosted_parameter import HostedParameter


class AnyStore(Protocol):
    """A `RemoteStore`, which is made of pushes, and they of variables.

    Attributes:
        servers: Sessions with all servers.
        table_changes: How often this process has changed rows of tables, other than by steps.
    """

    servers: ServerGroup
    table_changes: int

    def require(self, variables: Iterable[Any]) -> None: ...

    def refresh(self, variables: Iterable[Any], training: bool = False) -> None: ...

    def write_behind(self, writings: Mapping[Any, Writing]) -> None: ...

    def write(self, writings: Mapping[Any, Writing]) -> dict[str, int]: ...

    def rows(
        self, variables: Sequence[Any], rows: Sequence[torch.Tensor], training: bool = False
    ) -> Sequence[torch.Tensor]: ...

    def asked_rows(
        self, variables: Sequence[Any], rows: Sequence[torch.Tensor], training: bool
    ) -> AskedRows: ...

    def keys(self, part: Any, limit: int) -> Iterator[torch.Tensor]: ...


MODES: dict[Write, AssignMode] = {
    Write.ASSIGN: ASSIGN_MODE_SET,
    Write.ASSIGN_ADD: ASSIGN_MODE_ADD,
    Write.ASSIGN_SUB: ASSIGN_MODE_SUBTRACT,
    Write.SCATTER_ADD: ASSIGN_MODE_ADD,
    Write.SCATTER_SUB: ASSIGN_MODE_SUBTRACT,
    Write.SCATTER_MUL: ASSIGN_MODE_MULTIPLY,
    Write.SCATTER_DIV: ASSIGN_MODE_DIVIDE,
    Write.SCATTER_MIN: ASSIGN_MODE_MINIMUM,
    Write.SCATTER_MAX: ASSIGN_MODE_MAXIMUM,
    Write.SCATTER_UPDATE: ASSIGN_MODE_SET,
}
"""What servers call the ways to write."""


class AnyShard(Protocol):
    """Which part of a larger variable one is.

    Attributes:
        rows: Its rows.
        shape: The shape of the whole.
        message: How servers know it.
    """

    @property
    def rows(self) -> PartRows: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def message(self) -> Partition: ...


class Shard(NamedTuple):
    """Which part of a larger variable one is.

    Attributes:
        rows: Its rows.
        shape: The shape of the whole.
    """

    rows: PartRows
    shape: tuple[int, ...]

    @property
    def message(self) -> Partition:
        """How servers know it."""
        return self.rows.partition(self.shape)


class Owner(NamedTuple):
    """What a variable belongs to.

    Attributes:
        module_path: Where in the user's modules that is; "" if in none.
        shard: Which part of a larger variable it is; None if it is whole.
    """

    module_path: str = ""
    shard: AnyShard | None = None


NO_OWNER = Owner()


class RemoteVariable(Variable):
    """The client's end of a variable on a server.

    It keeps a copy of the value, its leaf of autograd. In a replica the copy is as of the start of
    the step, so that forward and backward see one value; anywhere else each look at the value
    fetches it, if it has changed. Writes are carried out by the server, each as a whole. The
    initial value becomes the copy.

    Attributes:
        place: Where it is.
        origin: What tells it from its namesakes; None if that is unknown.
        is_forgotten: Whether the program has had it deleted.
    """

    def __init__(
        self,
        store: AnyStore,
        place: Place,
        traits: VariableTraits,
        value: torch.Tensor,
        owner: Owner = NO_OWNER,
    ) -> None:
        self._store = store
        self.place = place
        self._traits = traits
        self._owner = owner
        self._tensor_spec = spec_of(value)
        self._nbytes = nbytes_of(self._tensor_spec)
        self.origin: Origin | None = None
        self._own_leaf = value
        self._hosted: HostedParameter | None = None
        self._version: int | None = None
        self._is_rounded = False
        self._outdated = False
        self.is_forgotten = False

    @property
    def dtype(self) -> torch.dtype:
        return decode_dtype(self._tensor_spec.dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._tensor_spec.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self._nbytes

    @property
    def device(self) -> torch.device:
        return self.leaf.device

    @property
    def device_name(self) -> str:
        return server_device(self.place.server)

    @property
    def spec(self) -> VariableSpec:
        """How servers know it."""
        return VariableSpec(
            name=self.name,
            tensor=self._tensor_spec,
            trainable=self.trainable,
            synchronization=f"SYNCHRONIZATION_{self.synchronization.name}",
            aggregation=f"AGGREGATION_{self.aggregation.name}",
            kind=VARIABLE_KIND_MODEL,
            device=self.device_name,
            ordinal=self.place.ordinal,
            module_path=self._owner.module_path,
            partition=None if self._owner.shard is None else self._owner.shard.message,
            origin=None if self.origin is None else message_of(self.origin),
        )

    @property
    def has_copy(self) -> bool:
        """Whether there is a copy of the value here."""
        return True

    @property
    def leaf(self) -> torch.Tensor:
        """The copy of the value, as it is."""
        if self._hosted is None:
            return self._own_leaf
        parameter, shard = self._hosted.leaves[0], self._owner.shard
        # Detached, rows still share what counts the writes to the parameter.
        return parameter if shard is None else shard.rows.select(parameter.detach())

    @property
    def whole(self) -> torch.Tensor:
        """The copy of the value of all that it is a shard of."""
        return self._own_leaf if self._hosted is None else self._hosted.parameter

    def value(self) -> torch.Tensor:
        if self._outdated or current_replica_id() is None:
            self._store.refresh([self])
        return self.leaf

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        # Without asking the server for the newest value.
        return self.leaf is tensor

    def _write(self, write: Write, value: Any) -> None:
        self._store.write_behind({self: self.writing(write, value)})

    def writing(self, write: Write, value: Any) -> Writing:
        """Return what to send so that a tensor of its shape, or rows of it, is written."""
        self.require_remembered()
        if isinstance(value, IndexedSlices):
            rows = value.indices.to(torch.int64)
            return Writing(self.name, MODES[write], value.values, rows)
        found = operand(self, value)
        plain = found.detach() if found.requires_grad else found
        return Writing(self.name, MODES[write], plain)

    def require_existing(self) -> None:
        """Check that its server has it, which may have lost it to the end of an earlier run.

        Raises:
            FailedPreconditionError: It does not exist before it gets a value.
        """
        self._store.require([self])

    def require_remembered(self) -> None:
        """Check that it was not forgotten, after which another one may have its name.

        Raises:
            FailedPreconditionError: It was.
        """
        if self.is_forgotten:
            raise FailedPreconditionError(
                f"{self.name!r} was given to strategy.forget(), and the servers have deleted it; "
                "make another one",
                variable=self.name,
            )

    def follow(self, server: int, spec: VariableSpec) -> None:
        """Be where servers have it already, and divided in the way that they describe.

        Only tables are; others have to be found where this program expects them.
        """

    def end(self) -> None:
        """Note that the servers have deleted it; a module keeps what it has."""
        self.is_forgotten = True
        self._hosted = None

    def is_in_use(self, run: bytes | None) -> bool:
        """Return whether its strategy is open, and uses this run of its server.

        Another server may have got the address since.
        """
        servers = self._store.servers
        is_open = not servers.closed and not self.is_forgotten
        return is_open and servers.runs.get(self.place.server) == run

    # For those who keep the copy fresh.

    def show_in(self, hosted: HostedParameter) -> None:
        """Make a module's parameter the copy of the value."""
        self._hosted = hosted
        self._own_leaf = hosted.parameter  # the other copy is not needed

    def reading(
        self, narrowed_to: torch.dtype | None = None, into: torch.Tensor | None = None
    ) -> Reading:
        """Return what to read to make the copy fresh, into the copy by default.

        Newer values may be rounded to `narrowed_to`; without it, a rounded copy is replaced, too.
        """
        is_enough = narrowed_to is not None or not self._is_rounded
        newer_than = self._version if is_enough else None
        target = self.leaf if into is None else into
        return Reading(self.name, target, newer_than, narrowed_to=narrowed_to)

    @property
    def is_known(self) -> bool:
        """Whether the copy is a value of the variable."""
        return self._version is not None

    def is_older_than(self, version: int) -> bool:
        """Whether the copy is, or may be, the value of an earlier version."""
        return self._version is None or is_newer(version, self._version)

    def accept(self, version: int, is_rounded: bool = False) -> None:
        """Note that the copy is now the value of that version, perhaps rounded on its way."""
        if version != self._version or (self._is_rounded and not is_rounded):
            self.replaced(version, is_rounded)
        self._outdated = False

    def replaced(self, version: int, is_rounded: bool = False) -> None:
        """As `accept`, where the copy was written even if it had that version."""
        self._is_rounded = is_rounded
        if self._hosted is not None:
            self._hosted.accept_everywhere()
        self._version = version
        self._outdated = False

    def outdate(self) -> None:
        """Note that this process had the variable written, but not the copy."""
        self._outdated = True

    def distrust(self) -> None:
        """Note that the copy may be no value of the variable at all."""
        if self._hosted is not None:
            self._hosted.accept_everywhere()
        self._version = None


Copies: TypeAlias = Mapping[int, Sequence[RemoteVariable]]
"""Variables of which there are copies in this process, by server."""


def by_server(variables: Iterable[RemoteVariable]) -> dict[int, list[RemoteVariable]]:
    """Return the variables of each server, in their order."""
    groups: dict[int, list[RemoteVariable]] = defaultdict(list)
    for variable in variables:
        groups[variable.place.server].append(variable)
    return groups


def remote_of(variable: Variable) -> RemoteVariable | None:
    """Return the remote variable that this one is or wraps, None if there is none."""
    if isinstance(variable, AggregatingVariable):
        variable = variable.only_copy
    return variable if isinstance(variable, RemoteVariable) else None
