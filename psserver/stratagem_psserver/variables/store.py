"""The variables of one server: descriptions, values, versions, slots, and memory they share."""

from __future__ import annotations

import difflib
import os.path
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from itertools import count

import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    ResourceExhaustedError,
    VariableNotFoundError,
)
from stratagem_proto.programs.random_rows import row_nbytes
from stratagem_proto.protocol import FIRST_VERSION, MAX_NAME_LENGTH, check_name
from stratagem_proto.rows import put
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_SLOT,
    VariableInfo,
    VariableKind,
    VariableSpec,
)
from stratagem_proto.wire.segment import starts
from stratagem_proto.wire.tensors import nbytes_of, spec_of
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import FIRST_ROWS, Table
from stratagem_psserver.tables.table_disk import TableDisk
from stratagem_psserver.variables.creation import (
    check_origin,
    check_partition,
    check_slot,
    check_table,
    check_value,
)

_NUMBERS = count()


class JointMemory:
    """One vector of memory whose parts are the values of several variables.

    It is freed when the last variable has released its part.

    Args:
        memory: The vector.
        names: The variables, in the order of their parts.
        memory_limit: Counts the parts that were released while other variables keep the memory. The
            other parts are counted with their variables.

    Attributes:
        memory: The vector.
        names: The variables that had a part at first.
    """

    def __init__(
        self, memory: torch.Tensor, names: Sequence[str], memory_limit: VariableMemoryLimit
    ) -> None:
        self.memory, self.names = memory, names
        self._memory_limit, self._members, self._unused = memory_limit, len(names), 0
        # Variables leave in several threads, each under its own lock.
        self._leaving = threading.Lock()
        # No variable has such a name.
        self._name = f"\0joint {next(_NUMBERS)}"

    @property
    def is_whole(self) -> bool:
        """Whether no variable has released its part."""
        return self._members == len(self.names)

    def release_part(self, nbytes: int) -> None:
        """Note that a variable has released its part, which has so many bytes."""
        with self._leaving:
            self._members -= 1
            self._unused = self._unused + nbytes if self._members else 0
            self._memory_limit.record(self._name, self._unused)


_COMPARED = 100  # names, for advice on an unknown one


@dataclass
class Variable:
    """A hosted variable.

    Attributes:
        spec: The description that it was created with.
        value: A CPU tensor of the spec's dtype and shape. That of a table has no rows.
        version: A number that each applied change increases by 1.
        arena: The stored rows of a table or of a slot of one; None for other variables.
        joint: The memory that its value shares with those of other variables; None if it has
            memory of its own.
    """

    spec: VariableSpec
    value: torch.Tensor
    version: int = FIRST_VERSION
    arena: Arena | None = None
    joint: JointMemory | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def owner(self) -> str:
        """The name of the variable whose lock protects this one."""
        return self.spec.slot_of or self.spec.name

    @property
    def live_arena(self) -> Arena | None:
        """The arena that has its present rows; None if it is no table, or one of a snapshot."""
        return self.arena

    def set_storage(self, value: torch.Tensor, joint: JointMemory | None = None) -> None:
        """Set the tensor that contains the value, and the joint memory that the tensor is in."""
        if self.joint is not None:
            self.joint.release_part(self.value.nbytes)
        self.value, self.joint = value, joint

    def info(self) -> VariableInfo:
        info = VariableInfo(spec=self.spec, version=self.version)
        if self.arena is not None and self.arena is self.arena.table.value:
            info.table.CopyFrom(self.arena.table.statistics())
        return info

    def keys(self) -> torch.Tensor:
        """Return the keys of the stored rows, int32 or int64; do not change the tensor.

        Raises:
            InvalidArgumentError: The variable is not a table.
        """
        if self.arena is None:
            raise InvalidArgumentError(
                f"{self.name!r} is not a table and stores all its rows; list the keys of a table",
                variable=self.name,
            )
        return self.arena.table.stored()[0]

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of some rows, which may repeat."""
        if self.arena is None:
            return self.value.index_select(0, rows)
        return self.arena.read(self.arena.table.find(rows))

    def put_rows(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Write distinct rows; a table must have made room for them before."""
        if self.arena is None:
            put(self.value, rows, values)
            return
        table = self.arena.table
        table.store(table.find(rows), {self.arena: values})


class VariableStore:
    """All variables of a server by name, in order of creation.

    The store has no locks: callers that change a value hold the variable's lock, and only one
    thread adds and removes variables.

    Args:
        memory_limit: The limit of the memory of variables; by default there is none.
        disk: The disk for the rows of tables; by default they are in memory.

    Attributes:
        memory_limit: As the argument.
        disk: As the argument.
        generation: The number of times that variables were added, removed or replaced. While it
            stays the same, what callers have cached about variables is valid.
        first_version: The version of new variables. It is above the versions of all deleted
            variables, since a new variable may have the name of a deleted one.
    """

    def __init__(
        self, memory_limit: VariableMemoryLimit | None = None, disk: TableDisk | None = None
    ) -> None:
        self.memory_limit, self.disk = memory_limit or VariableMemoryLimit(), disk
        self.generation = 0
        self.first_version = FIRST_VERSION
        self._watching: list[Callable[[], object]] = []
        self._variables: dict[str, Variable] = {}
        # The names of slots by owner, and the owner of each slot.
        self._slots: dict[str, list[str]] = {}
        self._owners: dict[str, str] = {}

    def watch(self, forget: Callable[[], object]) -> None:
        """Call a function whenever variables are added, removed or replaced."""
        self._watching.append(forget)

    def changed(self) -> None:
        """Note that variables were added, removed or replaced."""
        self.generation += 1
        for forget in self._watching:
            forget()

    def get(self, name: str) -> Variable:
        """Return the variable of that name.

        Raises:
            VariableNotFoundError: There is none; the error suggests the nearest name.
        """
        try:
            return self._variables[name]
        except KeyError:
            # Comparing what is longer than any name would take seconds, too.
            name = name[:MAX_NAME_LENGTH]
            raise VariableNotFoundError(
                f"this server hosts no variable {name!r}; {self._advice(name)}", variable=name
            ) from None

    def find(self, name: str) -> Variable | None:
        return self._variables.get(name)

    @property
    def is_empty(self) -> bool:
        """Whether there are no variables."""
        return not self._variables

    def variables(self) -> Iterable[Variable]:
        """Return all variables, owners before their slots."""
        return self._variables.values()

    def _advice(self, name: str) -> str:
        if not self._variables:
            return "it hosts none yet; create it first, or restore a checkpoint"
        # Comparing 10^5 names would take seconds, in which no other request is served.
        alike = nlargest(_COMPARED, self._variables, key=partial(_beginning, name))
        near = difflib.get_close_matches(name, alike, n=1, cutoff=0.5)
        if near:
            return f"did you mean {near[0]!r}?"
        return f"it hosts {len(self._variables)}, none with a similar name"

    def describe(self, names: Iterable[str]) -> list[VariableInfo]:
        """Return the descriptions of variables, in the order of the names."""
        return [self.get(name).info() for name in names]

    def listing(self, kinds: Sequence[VariableKind] = ()) -> list[VariableInfo]:
        """Return the descriptions of the variables of some kinds, or of all variables."""
        return [
            variable.info()
            for variable in self._variables.values()
            if not kinds or variable.spec.kind in kinds
        ]

    def owner(self, name: str) -> str:
        """Return the owner of a slot, whose lock protects it; for other variables, the name."""
        return self._owners.get(name, name)

    def owners(self, names: Iterable[str]) -> list[str]:
        """Return the owners of variables, sorted and distinct."""
        owners = self._owners
        return sorted({owners.get(name, name) for name in names})

    def slots(self, name: str) -> list[str]:
        """Return the names of a variable's slot variables, in order of creation."""
        return list(self._slots.get(name, ()))

    def create(
        self, specs: Sequence[VariableSpec], values: Sequence[torch.Tensor]
    ) -> list[VariableInfo]:
        """Add variables, all or none.

        Args:
            specs: Descriptions of the variables.
            values: Their initial values, which the variables take over without a copy. That of a
                table has no rows.

        Raises:
            AlreadyExistsError: A name is taken, or given twice.
            VariableNotFoundError: The owner of a slot does not exist.
            InvalidArgumentError: A description contradicts itself.
            ResourceExhaustedError: There is no memory for a table, or the limit would be exceeded.
        """
        known: dict[str, VariableSpec] = {}
        for spec, value in zip(specs, values, strict=True):
            self._check_new(spec, value, known)
            known[spec.name] = spec
        added: list[Variable] = []
        first_version = self.first_version
        try:
            for spec, value in zip(specs, values, strict=True):
                self.memory_limit.take(spec.slot_of or spec.name, self._first_nbytes(spec))
                added.append(self._add(spec, value))
        except ResourceExhaustedError:
            for variable in reversed(added):
                self._remove(variable.name)
            # Nobody has seen a version of them.
            self.first_version = first_version
            raise
        finally:
            self.recount([spec.name for spec in specs])
        return [variable.info() for variable in added]

    def _check_new(
        self, spec: VariableSpec, value: torch.Tensor, known: dict[str, VariableSpec]
    ) -> None:
        check_name(spec.name)
        if spec.name in self._variables or spec.name in known:
            raise AlreadyExistsError(
                f"a variable {spec.name!r} exists already on this server; attach to "
                "it, choose another name or delete it first",
                variable=spec.name,
            )
        check_value(spec, value)
        check_partition(spec)
        check_origin(spec)
        self._check_ownership(spec, known)
        if spec.HasField("table") and not spec.slot_of:
            check_table(spec)

    def _check_ownership(self, spec: VariableSpec, known: dict[str, VariableSpec]) -> None:
        if (spec.kind == VARIABLE_KIND_SLOT) != bool(spec.slot_of):
            raise InvalidArgumentError(
                f"variable {spec.name!r} must have the kind SLOT and an owner, or neither",
                variable=spec.name,
            )
        if not spec.slot_of:
            return
        hosted = self.find(spec.slot_of)
        owner = known.get(spec.slot_of) or self.get(spec.slot_of).spec
        if owner.slot_of:
            raise InvalidArgumentError(
                f"variable {spec.name!r} cannot be a slot of {owner.name!r}, which is "
                f"a slot of {owner.slot_of!r} itself",
                variable=spec.name,
            )
        if spec.HasField("table"):
            arena = hosted.arena if hosted else None
            check_slot(spec, owner, arena.table if arena else None)

    def _first_nbytes(self, spec: VariableSpec) -> int:
        if not spec.HasField("table"):
            return nbytes_of(spec.tensor)
        owner = self.find(spec.slot_of)
        arena = owner.arena if owner else None
        nbytes = row_nbytes(spec)
        return arena.table.memory_for(nbytes) if arena else FIRST_ROWS * nbytes

    def recount(self, names: Iterable[str]) -> None:
        """Update the memory that is counted for the owners of these variables."""
        if self.memory_limit.is_limited:
            for owner in {self.owner(name) for name in names}:
                self.memory_limit.record(owner, self._nbytes(owner))

    def _nbytes(self, owner: str) -> int:
        variable = self.find(owner)
        if variable is None:
            return 0
        dense = (self._variables[name].value for name in (owner, *self.slots(owner)))
        arena = variable.arena
        return sum(v.nbytes for v in dense) + (arena.table.nbytes if arena else 0)

    def _add(self, spec: VariableSpec, value: torch.Tensor, arena: Arena | None = None) -> Variable:
        if spec.HasField("table") and arena is None:
            arena = self._new_arena(spec)
        variable = Variable(spec, value, self.first_version, arena)
        self._variables[spec.name] = variable
        self.changed()
        if spec.slot_of:
            self._slots.setdefault(spec.slot_of, []).append(spec.name)
            self._owners[spec.name] = spec.slot_of
        return variable

    def _new_arena(self, spec: VariableSpec) -> Arena:
        owner = self._variables[spec.slot_of].arena if spec.slot_of else None
        if owner is None:
            return Table(spec, self.disk).value
        arena = Arena(owner.table, spec)
        owner.table.attach([arena])
        return arena

    def put_value(self, name: str, value: torch.Tensor) -> None:
        """Set the tensor that contains a variable's value, and increase the version."""
        variable = self.get(name)
        if variable.value is not value:
            variable.set_storage(value)
            self.changed()
        variable.version += 1

    def put_slot(self, name: str, owner: str, value: torch.Tensor) -> None:
        """Set the tensor that contains a slot's value; create the slot if it does not exist."""
        if name in self._variables:
            self.put_value(name, value)
            return
        spec = VariableSpec(
            name=name, tensor=spec_of(value), kind=VARIABLE_KIND_SLOT, slot_of=owner
        )
        self._add(spec, value)

    def put_table(self, arena: Arena) -> None:
        """Set the rows of a table or of a slot of one; create it if it does not exist."""
        spec = arena.initial.spec
        value = torch.empty(0, *arena.initial.row_shape, dtype=arena.initial.dtype)
        variable = self._variables.get(spec.name)
        if variable is None:
            self._add(spec, value, arena)
            return
        if variable.arena is not arena:
            variable.set_storage(value)
            variable.spec, variable.arena = spec, arena
            self.changed()
        variable.version += 1

    def delete(self, names: Sequence[str]) -> list[str]:
        """Remove variables and their slots, all or none, and return all removed names.

        Raises:
            VariableNotFoundError: A name does not exist.
        """
        doomed: dict[str, None] = {}
        for name in names:
            self.get(name)
            doomed.update(dict.fromkeys((name, *self.slots(name))))
        owners = [self.owner(name) for name in doomed]
        for name in doomed:
            self._remove(name)
        self.recount(owners)
        return list(doomed)

    def _remove(self, name: str) -> None:
        variable = self._variables.pop(name)
        self.first_version = max(self.first_version, variable.version + 1)
        if variable.joint is not None:
            variable.joint.release_part(variable.value.nbytes)
        self.changed()
        owner, arena = variable.spec.slot_of, variable.arena
        if arena is not None and owner:
            arena.table.detach(arena)
        self._slots.pop(name, None)
        self._owners.pop(name, None)
        if owner in self._slots:
            self._slots[owner].remove(name)


def _beginning(name: str, other: str) -> int:
    return len(os.path.commonprefix((name, other)))  # noqa: RUF071  # no paths


def joined(store: VariableStore, variables: Sequence[Variable]) -> torch.Tensor | None:
    """Return one vector that contains the values of some variables of one dtype.

    The values lie in it at the offsets that tensors of their sizes have in a shared segment. The
    bytes between them may be overwritten.

    Args:
        store: The store of the variables.
        variables: The variables, whose locks the caller holds. They are moved into joint memory
            unless they are in one already.

    Returns:
        The vector; None if one of the variables shares its memory with other variables, or the
        order is another one.
    """
    names = [each.name for each in variables]
    joints = [each.joint for each in variables]
    whole = {joint for joint in joints if joint is not None and joint.is_whole}
    if not whole:
        return _moved(store, variables)
    joint = whole.pop()
    return joint.memory if joint.names == names else None


def _moved(store: VariableStore, variables: Sequence[Variable]) -> torch.Tensor:
    values = [each.value for each in variables]
    size, dtype = values[0].itemsize, values[0].dtype
    places, room = starts([value.nbytes for value in values])
    memory = torch.zeros(room // size, dtype=dtype)
    joint = JointMemory(memory, [each.name for each in variables], store.memory_limit)
    for variable, value, place in zip(variables, values, places, strict=True):
        part = memory.narrow(0, place // size, value.numel()).view(value.shape)
        variable.set_storage(part.copy_(value), joint)
    store.changed()
    return memory


def joined_with(store: VariableStore, names: Iterable[str]) -> list[Variable]:
    """Return the other variables that share joint memory with these or with their slots.

    Names that the store does not know are left out.
    """
    own = {each for name in names for each in (name, *store.slots(name))}
    found = [store.find(name) for name in own]
    joints = {each.joint for each in found if each is not None and each.joint}
    other_names = {name for joint in joints for name in joint.names} - own
    others = [store.find(name) for name in sorted(other_names)]
    return [each for each in others if each is not None and each.joint in joints]


def separate(store: VariableStore, variables: Sequence[Variable]) -> None:
    """Move variables out of joint memory into their own; the caller holds their locks."""
    for variable in variables:
        variable.set_storage(variable.value.clone())
    if variables:
        store.changed()
