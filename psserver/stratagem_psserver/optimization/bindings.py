"""The binding of a variable to an optimizer for one step.

With a dense gradient, the optimizer steps the variable's own tensor. With a row-sparse gradient it
steps a copy of the rows that have a gradient, and of the same rows of the state; after the step
they are written back. So the cost of a step depends on the number of its rows and not on the size
of the variable; rows without a gradient keep their values and state; and a step that fails has
changed no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.protocol import check_name
from stratagem_proto.rows import put
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, Initializer, TableSpec, VariableSpec
from stratagem_proto.wire.tensors import encode_dtype
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.gradients import Gradient, RowGradient
from stratagem_psserver.optimization.torch_rules import StateLayout, StateTensor, StepNeeds
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.store import Variable, VariableStore


class OptimizerState(NamedTuple):
    """An optimizer's state for a variable.

    Attributes:
        layout: The tensors of the state.
        names: The names of its slots, by the optimizer's keys.
        slots: The slots that exist, by the optimizer's keys: all or none.
    """

    layout: StateLayout
    names: Mapping[str, str]
    slots: Mapping[str, Variable]


class OptimizerStates:
    """Finds the state of optimizers, and caches it until variables are added or removed.

    Making and checking the names of slots takes a notable part of a small step.

    Args:
        store: The store of the variables and their slots.
    """

    def __init__(self, store: VariableStore) -> None:
        self._store = store
        # By the names of the optimizer and the variable.
        self._found: dict[tuple[str, str], OptimizerState] = {}
        store.watch(self._found.clear)

    def find(self, optimizer: str, variable: Variable, layout: StateLayout) -> OptimizerState:
        """Return an optimizer's state for a variable, which may not exist yet.

        Raises:
            InvalidArgumentError: The variable is a slot.
            FailedPreconditionError: The state is incomplete or does not fit.
            AlreadyExistsError: The name of a slot is that of another variable.
        """
        known = self._found.get((optimizer, variable.name))
        if known is not None and known.layout is layout:
            return known
        state = self._find(optimizer, variable, layout)
        # The cache cannot outgrow the slots, whatever names clients send.
        if state.slots:
            self._found[optimizer, variable.name] = state
        return state

    def _find(self, optimizer: str, variable: Variable, layout: StateLayout) -> OptimizerState:
        if variable.spec.slot_of:
            raise InvalidArgumentError(
                f"{variable.name!r} is a slot of {variable.spec.slot_of!r}; optimizers "
                "step the variables themselves",
                variable=variable.name,
            )
        names = {key: str(SlotName(variable.name, optimizer, key)) for key in layout}
        slots = self._slots(optimizer, variable, names, layout)
        return OptimizerState(layout, names, slots)

    def _slots(
        self, optimizer: str, variable: Variable, names: Mapping[str, str], layout: StateLayout
    ) -> dict[str, Variable]:
        """Return the slot variables by the optimizer's keys; none if they do not exist yet."""
        found: dict[str, Variable] = {}
        for key, name in names.items():
            slot = self._store.find(name)
            if slot is None:
                check_name(name)
            else:
                _check_slot(slot, variable, layout[key])
                found[key] = slot
        if found and (missing := layout.keys() - found.keys()):
            raise FailedPreconditionError(
                f"optimizer {optimizer!r} has the state {sorted(found)} for "
                f"{variable.name!r} but no {sorted(missing)}, as if it was trained with other "
                "settings before, such as amsgrad; train with those, or create all of these slot "
                "variables or delete all",
                variable=variable.name,
            )
        return found


def _check_slot(slot: Variable, variable: Variable, expected: StateTensor) -> None:
    if slot.spec.slot_of != variable.name:
        raise AlreadyExistsError(
            f"variable {slot.name!r} is not a slot of {variable.name!r} but has the name "
            "of the optimizer's state; rename the variable or the optimizer",
            variable=slot.name,
        )
    shape = expected.shape(variable.value)
    of_table = variable.arena is not None and not expected.is_scalar
    fits = of_table == (slot.arena is not None)
    if not fits or (slot.value.dtype, slot.value.shape) != (expected.dtype, shape):
        kind = "table" if of_table else "tensor"
        shown = list(expected.shape_for(variable.spec.tensor.shape))
        raise FailedPreconditionError(
            f"slot variable {slot.name!r} is {slot.value.dtype} of shape "
            f"{list(slot.spec.tensor.shape)}; the optimizer needs a {kind}, "
            f"{expected.dtype} of shape {shown}; delete it, or create it like that",
            variable=slot.name,
        )


class BoundParameter(NamedTuple):
    """A parameter as the optimizer gets it.

    Attributes:
        tensor: The parameter.
        gradient: Its gradient.
        state: Its state by key; empty if this is its first step.
    """

    tensor: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, Any]


class ParameterBinding(Protocol):
    """A variable that is bound to an optimizer for one step."""

    @property
    def variable(self) -> Variable:
        """The variable."""

    @property
    def is_by_rows(self) -> bool:
        """Whether its gradient is row-sparse."""

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        """Take all memory that the step needs, without changing the variable.

        Args:
            memory_limit: The limit of the memory for new state and rows.

        Raises:
            ResourceExhaustedError: There is not enough memory.
        """

    def close(self, state: Mapping[str, Any]) -> None:
        """Take over the results of the optimizer: rows, and the state that it made."""

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


@dataclass
class WholeBinding:
    """A variable with a dense gradient.

    Attributes:
        variable: The variable.
        gradient: The gradient, of the variable's shape.
        layout: The state that the optimizer keeps for it.
        names: The names of its slots, by the optimizer's keys.
        slots: The slots that exist, by the optimizer's keys: all or none.
    """

    variable: Variable
    gradient: torch.Tensor
    layout: StateLayout
    names: Mapping[str, str]
    slots: Mapping[str, Variable]
    _made: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_by_rows(self) -> bool:
        return False

    @property
    def missing(self) -> int:
        """Bytes of the state that the optimizer will make."""
        return missing_nbytes(self.variable, self.layout, self.slots)

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        memory_limit.take(self.variable.name, self.missing)
        state = {key: self.layout[key].bound(slot.value) for key, slot in self.slots.items()}
        return BoundParameter(self.variable.value, self.gradient, state)

    def close(self, state: Mapping[str, Any]) -> None:
        self._made = as_tensors(state, self.layout)

    def commit(self, store: VariableStore) -> None:
        for key, tensor in self._made.items():
            slot = self.slots.get(key)
            if slot is not None and slot.value is tensor:
                slot.version += 1  # nearly always: the optimizer changed its state in place
            else:
                store.put_slot(self.names[key], self.variable.name, tensor)


def missing_nbytes(variable: Variable, layout: StateLayout, slots: Mapping[str, Variable]) -> int:
    """Return the bytes of the state that an optimizer will make for a whole variable."""
    if len(slots) == len(layout):
        return 0
    return sum(
        state.shape(variable.value).numel() * state.dtype.itemsize
        for key, state in layout.items()
        if key not in slots
    )


def as_tensors(state: Mapping[str, Any], layout: StateLayout) -> dict[str, torch.Tensor]:
    """Return an optimizer's state as tensors of the layout's dtypes."""
    return {key: as_tensor(value, layout[key].dtype) for key, value in state.items()}


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor or number of an optimizer's state as a tensor of a dtype."""
    # With 160 parameters, conversions that change nothing would take as long as a small step.
    if isinstance(value, torch.Tensor) and value.dtype == dtype:
        return value
    return torch.as_tensor(value).to(dtype)


State: TypeAlias = "dict[str, torch.Tensor]"

# The most elements of one call of BLAS.
_MOST_ELEMENTS = 2**31 - 1


@dataclass
class _RowBinding:
    """What the two bindings of rows have in common.

    Attributes:
        variable: The variable or table.
        gradient: The row-sparse gradient.
        needs: What the optimizer's step needs.
        names: The names of the slots, by the optimizer's keys.
        slots: The slots that exist, by the optimizer's keys: all or none.
    """

    variable: Variable
    gradient: Gradient
    needs: StepNeeds
    names: Mapping[str, str]
    slots: Mapping[str, Variable]
    _value: torch.Tensor = field(init=False)
    _scalars: State = field(default_factory=dict)

    @property
    def is_by_rows(self) -> bool:
        return True

    def _distinct(self) -> RowGradient:
        rows, values = self.gradient.rows, self.gradient.value
        assert rows is not None
        if self.needs.takes_sparse:
            return RowGradient.from_rows(rows, values)
        return RowGradient.added(rows, values)

    def _bound(self, gradient: RowGradient, value: torch.Tensor, state: State) -> BoundParameter:
        layout, sparse = self.needs.layout, self.needs.takes_sparse
        # State by rows tells one row from several.
        if sparse and not self.needs.has_rows and _can_be_one_row(gradient):
            gradient = RowGradient(gradient.rows[:1], None, _one_row(gradient.values))
            value = _one_row(value)
            state = {
                key: tensor if layout[key].is_scalar else _one_row(tensor)
                for key, tensor in state.items()
            }
        grad = gradient.as_sparse() if sparse else gradient.values
        bound = {key: layout[key].bound(tensor) for key, tensor in state.items()}
        return BoundParameter(value, grad, bound)

    def _scalar(self, key: str) -> torch.Tensor:
        layout = self.needs.layout[key]
        if key in self.slots:
            # Optimizers change their counts in place.
            return self.slots[key].value.clone()
        return torch.full((), layout.initial, dtype=layout.dtype)

    def _returned(self, state: Mapping[str, Any]) -> State:
        """Return the rows of the state, and keep its scalars for `commit`."""
        layout = self.needs.layout
        made = as_tensors(state, layout)
        self._scalars = {key: made[key] for key in made if layout[key].is_scalar}
        return {
            key: made[key].view(layout[key].shape(self._value))
            for key in made
            if not layout[key].is_scalar
        }

    def _commit_scalars(self, store: VariableStore) -> None:
        for key, tensor in self._scalars.items():
            store.put_slot(self.names[key], self.variable.name, tensor)


class TensorRowBinding(_RowBinding):
    """Rows of a variable that is not a table."""

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        missing = missing_nbytes(self.variable, self.needs.layout, self.slots)
        memory_limit.take(self.variable.name, missing)
        gradient = self._distinct()
        self._rows = gradient.rows
        self._states = {
            key: self.slots[key].value if key in self.slots else self._begun(state)
            for key, state in self.needs.layout.items()
            if not state.is_scalar
        }
        state = {
            key: self._scalar(key) if layout.is_scalar else self._read(key)
            for key, layout in self.needs.layout.items()
        }
        value = self.variable.value.index_select(0, self._rows)
        self._value = value
        return self._bound(gradient, value, state)

    def _begun(self, state: StateTensor) -> torch.Tensor:
        shape = state.shape(self.variable.value)
        return torch.full(shape, state.initial, dtype=state.dtype)

    def _read(self, key: str) -> torch.Tensor:
        return self._states[key].index_select(0, self._rows)

    def close(self, state: Mapping[str, Any]) -> None:
        put(self.variable.value, self._rows, self._value)
        for key, rows in self._returned(state).items():
            put(self._states[key], self._rows, rows)

    def commit(self, store: VariableStore) -> None:
        for key, tensor in self._states.items():
            store.put_slot(self.names[key], self.variable.name, tensor)
        self._commit_scalars(store)


class TableRowBinding(_RowBinding):
    """Rows of a table; the step leaves out new keys that are not admitted yet."""

    def check_fit(self) -> None:
        """Check that the table can store all rows of the gradient at once.

        Raises:
            InvalidArgumentError: It cannot, together with the state that the step makes.
        """
        rows, more_bytes = self.gradient.rows, self._more_row_bytes
        assert rows is not None
        if len(rows) > self._table.most_rows(more_bytes):
            rows = rows.unique()
        self._table.check_fit(len(rows), more_bytes)

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        table, gradient = self._table, self._distinct()
        found = table.find(gradient.rows)
        refused = found.is_new & ~table.admission.is_due(gradient.rows)
        self._refused = gradient.rows[refused]
        if len(self._refused):
            gradient, found = gradient.only(~refused), found.only(~refused)
        table.make_room(found, memory_limit)
        memory_limit.take(table.name, table.memory_for(self._more_row_bytes))
        self._found, self._begun = found, self._new_arenas()
        state = {
            key: self._scalar(key) if layout.is_scalar else self._read(key, layout)
            for key, layout in self.needs.layout.items()
        }
        self._value = table.value.read(found)
        return self._bound(gradient, self._value, state)

    @property
    def _more_row_bytes(self) -> int:
        """The bytes per row of the state that the step makes."""
        row = (1, *self.variable.value.shape[1:])
        return sum(
            state.shape_for(row).numel() * state.dtype.itemsize
            for key, state in self.needs.layout.items()
            if key not in self.slots and not state.is_scalar
        )

    @property
    def _table(self) -> Table:
        assert self.variable.arena is not None
        return self.variable.arena.table

    def _new_arenas(self) -> dict[str, Arena]:
        return {
            key: Arena(self._table, _slot_spec(self.names[key], self.variable, state))
            for key, state in self.needs.layout.items()
            if key not in self.slots and not state.is_scalar
        }

    def _read(self, key: str, layout: StateTensor) -> torch.Tensor:
        if key in self._begun:
            shape = (len(self._found.keys), *self.variable.value.shape[1:])
            return torch.full(layout.shape_for(shape), layout.initial, dtype=layout.dtype)
        return self._arena(key).read(self._found)

    def _arena(self, key: str) -> Arena:
        arena = self._begun[key] if key in self._begun else self.slots[key].arena
        assert arena is not None
        return arena

    def close(self, state: Mapping[str, Any]) -> None:
        table, found = self._table, self._found
        if self._begun:
            table.attach(list(self._begun.values()))
            found = table.find(found.keys)
        rows = {self._arena(k): rows for k, rows in self._returned(state).items()}
        try:
            table.store(found, {table.value: self._value, **rows})
        except ResourceExhaustedError:
            for arena in self._begun.values():
                table.detach(arena)
            raise
        table.drop(self._refused)

    def commit(self, store: VariableStore) -> None:
        for key, layout in self.needs.layout.items():
            if not layout.is_scalar:
                store.put_table(self._arena(key))
        self._commit_scalars(store)


def _can_be_one_row(gradient: RowGradient) -> bool:
    """Return whether all rows together may be passed to torch as a single row.

    torch adds sparse rows to dense ones by one call of BLAS for each row, which takes longer than
    one call for all. With MKL the bytes are the same either way. Rows of a single number are added
    without BLAS.
    """
    is_plain = gradient.places is None and gradient.values.dim() > 1
    fits = 0 < gradient.values.numel() <= _MOST_ELEMENTS
    return is_plain and fits and torch.backends.mkl.is_available()


def _one_row(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(1, -1)


def _slot_spec(name: str, owner: Variable, state: StateTensor) -> VariableSpec:
    shape = state.shape_for(owner.spec.tensor.shape)
    return VariableSpec(
        name=name,
        tensor=TensorSpec(dtype=encode_dtype(state.dtype), shape=shape),
        kind=VARIABLE_KIND_SLOT,
        slot_of=owner.name,
        initializer=Initializer(constant=state.initial),
        table=TableSpec(),
    )
