"""Variables that live on parameter servers: one whole, or one in several parts.

There are four kinds, since they differ in what a process has of them. A `RemoteVariable` is one
name on one server, with a copy here. A `SplitVariable` is a module's parameter that is several such
names on the servers and one copy here. A `TableVariable` is one too, but of its parts a process has
only the rows that it looks up. A public `ShardedVariable` is several variables of the program's,
with no copy of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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
from stratagem._parameter_server.variables.shards import Layout, Place, server_device
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reads import AskedRows, Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.division import PartRows
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import is_newer
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, Partition, VariableSpec
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
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of, spec_of

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._hosting.hosted_parameter import HostedParameter

_read: ContextVar[set[RemoteVariable] | None] = ContextVar("stratagem_cached_reads", default=None)


@contextmanager
def cache_variable_reads() -> Iterator[None]:
    """Scope in which each variable on a server is fetched once at most.

    What is read of it first is what all later reads in the scope give, also those of replicas,
    whatever is written to it meanwhile. Rows of tables are read anew. The scope is one of this
    thread; of variables that another thread reads meanwhile, this one sees what that has fetched.
    Variables in this process are not concerned::

        with stratagem.experimental.cache_variable_reads():
            for batch in batches:
                strategy.run(evaluate, args=(batch,))

    Raises:
        InvalidArgumentError: It is within another one.

    Spec: PSV-11.
    """
    if _read.get() is not None:
        raise InvalidArgumentError(
            "cache_variable_reads scope cannot be nested: a scope around this one "
            "caches what is read here as well"
        )
    token = _read.set(set())
    try:
        yield
    finally:
        _read.reset(token)


def unread(variables: Iterable[RemoteVariable]) -> Iterable[RemoteVariable]:
    """Return those of some variables that have to be fetched to be read."""
    known = _read.get()
    return variables if known is None else [v for v in variables if v not in known]


def note_read(variables: Iterable[RemoteVariable]) -> None:
    """Note that variables have been fetched."""
    known = _read.get()
    if known is not None:
        known.update(variables)


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
        has_copy: Whether there is a copy of the value here.
        copy_version: The version of the value that the copy is; None if it may be no value at all.
        is_forgotten: Whether the program has had it deleted.
        is_lent: Whether the program trains values of its own, and runs need no fresh copy.
    """

    is_lent: bool = False
    has_copy: bool = True

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
        self.copy_version: int | None = None
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
        newer_than = self.copy_version if is_enough else None
        target = self.leaf if into is None else into
        return Reading(self.name, target, newer_than, narrowed_to=narrowed_to)

    def is_older_than(self, version: int) -> bool:
        """Whether the copy is, or may be, the value of an earlier version."""
        return self.copy_version is None or is_newer(version, self.copy_version)

    @property
    def is_behind(self) -> bool:
        """Whether this process knows that the copy is not the value any more."""
        return self._outdated or self.copy_version is None

    def is_new(self, seen: int | None) -> bool:
        """Whether another version than that one has come, as servers have it."""
        return not (self.is_behind or self._is_rounded) and self.copy_version != seen

    def accept(self, version: int, is_rounded: bool = False) -> None:
        """Note that the copy is now the value of that version, perhaps rounded on its way."""
        if version != self.copy_version or (self._is_rounded and not is_rounded):
            self.replaced(version, is_rounded)
        self._outdated = False

    def replaced(self, version: int, is_rounded: bool = False) -> None:
        """As `accept`, where the copy was written even if it had that version."""
        self._is_rounded = is_rounded
        if self._hosted is not None:
            self._hosted.accept_everywhere()
        self.copy_version = version
        self._outdated = False

    def outdate(self) -> None:
        """Note that this process had the variable written, but not the copy."""
        self._outdated = True

    def invalidate(self) -> None:
        """Note that the copy may be no value of the variable at all."""
        if self._hosted is not None:
            self._hosted.accept_everywhere()
        self.copy_version = None


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


Slots = Mapping[str, torch.Tensor]
"""An optimizer's state for one variable, by torch's keys."""

ValuesOfRows: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""A gradient: its values, and the rows that they are of; None if they are of all."""


class SplitVariable(Variable):
    """A variable in several parts on servers, with one copy here.

    The copies of the parts are rows of one tensor, as the layout says.
    """

    def __init__(
        self, traits: VariableTraits, parts: Sequence[RemoteVariable], layout: Layout
    ) -> None:
        self._traits = traits
        self.parts = tuple(parts)
        self.layout = layout

    def _join(self, strategy: AnyStrategy, container: Variable | None = None) -> None:
        super()._join(strategy, container)
        for part in self.parts:
            part._join(strategy, container=self)

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.layout.total, *self.parts[0].shape[1:]))

    @property
    def device_name(self) -> str:
        """Full name of the device of the first part."""
        return self.parts[0].device_name

    def value(self) -> torch.Tensor:
        for part in self.parts:
            part.value()
        return self.parts[0].whole

    def _write(self, write: Write, value: Any) -> None:
        if isinstance(value, IndexedSlices):
            for part, share in zip(self.parts, self._shares(value), strict=True):
                part._write(write, share)
            return
        whole = operand(self, value)
        for part, rows in zip(self.parts, self.layout.shards, strict=True):
            part._write(write, rows.select(whole))

    def _shares(self, slices: IndexedSlices) -> list[IndexedSlices]:
        return [IndexedSlices(*one) for one in self._divided(slices.values, slices.indices)]

    def _divided(
        self, values: torch.Tensor, rows: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the values that each part gets, and the rows of the part that they are of."""
        return [(routed.select(values), routed.rows) for routed in self.layout.route(rows)]

    def gradients(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        """Return the gradient of each part.

        Of a sparse one each part gets a share, an empty one if there are none of its rows, so that
        all parts count the same steps.
        """
        values, rows = values_of_rows(gradient)
        if rows is not None:
            return self._divided(values, rows)
        return [(shard.select(values), None) for shard in self.layout.shards]


def joined_slots(
    variable: Variable, slots: Mapping[RemoteVariable, Slots]
) -> Mapping[str, torch.Tensor]:
    """Return an optimizer's state for a variable, given that for each part.

    What has no rows, such as a count of steps, is equal for all parts.
    """
    parts = parts_of(variable)
    first = slots[parts[0]]
    if not isinstance(variable, SplitVariable) or len(parts) == 1:
        return first
    return {
        key: variable.layout.join([slots[part][key] for part in parts])
        if value.shape[:1] == parts[0].shape[:1]
        else value
        for key, value in first.items()
    }


def divided_slots(variable: Variable, slots: Slots) -> list[Slots]:
    """Return an optimizer's state for each part of a variable."""
    if not isinstance(variable, SplitVariable):
        return [slots]
    return [
        {
            key: rows.select(value) if value.shape[:1] == variable.shape[:1] else value
            for key, value in slots.items()
        }
        for rows in variable.layout.shards
    ]


def values_of_rows(gradient: torch.Tensor) -> ValuesOfRows:
    """Return a gradient, dense or `torch.sparse_coo`, as servers take it."""
    if gradient.layout is not torch.sparse_coo:
        return gradient, None
    slices = IndexedSlices.from_sparse(gradient)
    return slices.values, slices.indices


def parts_of(variable: Variable) -> tuple[RemoteVariable, ...]:
    """Return what a variable is on the servers; nothing if it is not there."""
    if isinstance(variable, SplitVariable):
        return variable.parts
    remote = remote_of(variable)
    return () if remote is None else (remote,)
