"""Groups of variables and tables whose rows are stepped repeatedly, all of them at once.

A model with 26 tables would otherwise make 26 times the calls of torch: of a batch of 1,024
examples, the step of 10,500 rows took 27 ms of a processor by tables, and takes 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.programs.random_rows import InitialValues, initial_rows
from stratagem_proto.rows import WholeRows, Wholes, are_ascending, are_whole, as_elements
from stratagem_psserver.fast.same_bytes import SparseRule, is_joinable, sparse_rule
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.bindings import (
    ParameterBinding,
    TableRowBinding,
    TensorRowBinding,
)
from stratagem_psserver.optimization.gradients import StepGradients
from stratagem_psserver.optimization.optimizers import Undo
from stratagem_psserver.optimization.torch_rules import GroupSettings, StateLayout
from stratagem_psserver.tables.arena import Arena, FoundRows
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.store import Variable, VariableStore

# The key of the value among the arrays of a variable; optimizers name those of the state.
_VALUE = ""

# Rows of tables are found on the event loop, before it is known that a step can be repeated. More
# are found in a thread, by the full check.
_MOST_FOUND = 1 << 17

# torch shares more elements out among threads, which have to wake for each operation: beside a busy
# worker, a step of 5,250 rows of 16 numbers took 1.4 to 2.6 ms, and takes 0.9 in parts.
_STEPPED_AT_ONCE = 1 << 15

Positions = npt.NDArray[np.int64]


class RowStorage(Protocol):
    """Where the rows of a variable and of its state are.

    For each step call `find`, then `make_room`, `arrays` and `begin_write`, if it is taken.
    """

    def find(self, rows: torch.Tensor) -> bool:
        """Find ascending rows; return whether all of them exist and can be written."""

    def make_room(self) -> None:
        """Take the memory for the rows that were found, before anything is changed.

        Raises:
            ResourceExhaustedError: There is not enough.
        """

    def arrays(self) -> Mapping[str, RowArray] | None:
        """Return the present rows by the optimizer's keys; None if they cannot be copied whole."""

    @property
    def positions(self) -> Positions:
        """The positions in the arrays of the rows that were found; below 0 for new ones."""

    def begin_write(self) -> Positions:
        """Return the positions that the caller writes next, new ones included."""

    def put(self, positions: Positions, wholes: Mapping[str, Wholes]) -> None:
        """Write rows by the optimizer's keys."""

    def forget(self) -> None:
        """Drop what was found."""


class RowArray(Protocol):
    """Rows that are copied whole, as of `WholeRows`."""

    dtype: np.dtype[np.void]

    def take(self, rows: Positions, into: Wholes) -> None:
        """Copy rows; what comes for those below 0 has no meaning."""


class TensorRows:
    """The rows of tensors.

    Args:
        tensors: The value and the state by the optimizer's keys.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._count = len(tensors[_VALUE])
        whole = all(map(are_whole, tensors.values()))
        self._arrays = {key: WholeRows(each) for key, each in tensors.items()} if whole else None
        self.forget()

    def find(self, rows: torch.Tensor) -> bool:
        self.positions = rows.numpy()
        return are_ascending(rows, self._count)

    def make_room(self) -> None:
        pass

    def arrays(self) -> Mapping[str, RowArray] | None:
        return self._arrays

    def begin_write(self) -> Positions:
        return self.positions

    def put(self, positions: Positions, wholes: Mapping[str, Wholes]) -> None:
        assert self._arrays is not None
        for key, array in self._arrays.items():
            array.put(positions, wholes[key])

    def forget(self) -> None:
        self.positions = _NO_POSITIONS


class TableRows:
    """The rows of a table.

    Args:
        table: The table.
        arenas: The arenas of the value and of the state by the optimizer's keys.
        count: The number of its rows; None for a dynamic table.
        memory_limit: The limit of the memory for new rows.
    """

    def __init__(
        self,
        table: Table,
        arenas: Mapping[str, Arena],
        count: int | None,
        memory_limit: VariableMemoryLimit,
    ) -> None:
        self._table, self.arenas, self._count = table, arenas, count
        self._memory_limit = memory_limit
        self.forget()

    def find(self, rows: torch.Tensor) -> bool:
        if not are_ascending(rows, self._count):
            return False
        self.found = self._table.find(rows)
        return self._table.is_plain_write(self.found)

    def make_room(self) -> None:
        if self.found.num_new or self._table.is_on_disk:
            self._table.make_room(self.found, self._memory_limit)

    def arrays(self) -> Mapping[str, RowArray] | None:
        arrays = dict[str, RowArray]()
        for key, arena in self.arenas.items():
            if (whole := arena.whole_rows) is None:
                return None
            arrays[key] = whole
        return arrays

    def put(self, positions: Positions, wholes: Mapping[str, Wholes]) -> None:
        if self._table.is_on_disk:
            self._table.put_on_disk(
                positions, {arena: wholes[key] for key, arena in self.arenas.items()}
            )
            return
        for key, arena in self.arenas.items():
            whole = arena.whole_rows
            assert isinstance(whole, WholeRows)
            whole.put(positions, wholes[key])

    @property
    def positions(self) -> Positions:
        return self.found.positions.numpy()

    def begin_write(self) -> Positions:
        return self._table.begin_write(self.found, self.arenas.values()).numpy()

    def forget(self) -> None:
        self.found = _NOTHING_FOUND


_NO_POSITIONS: Positions = np.empty(0, np.int64)
_NOTHING_FOUND = FoundRows(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


@dataclass(eq=False)
class RowParameter:
    """A variable or table whose rows are stepped, with its state.

    Attributes:
        variable: The variable.
        place: The place of its gradient among those of the step.
        layout: The layout of the state.
        slots: The variables that keep the state, by the optimizer's keys.
        storage: Where the rows are.
        sizes: The dtypes of the rows of the value and of each state, as numpy has them.
        scalars: The state that is one number for all rows, by the optimizer's keys.
    """

    variable: Variable
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]
    storage: TensorRows | TableRows

    def __post_init__(self) -> None:
        self.dtype, self._row = self.variable.value.dtype, self.variable.value.shape[1:]
        self.sizes = tuple([array.dtype for array in _arrays(self).values()])
        self.scalars = {
            key: slot.value for key, slot in self.slots.items() if self.layout[key].is_scalar
        }

    @classmethod
    def from_binding(
        cls, binding: ParameterBinding, place: int, memory_limit: VariableMemoryLimit
    ) -> RowParameter | None:
        """Return the variable if its state exists and its rows can be copied whole."""
        if not isinstance(binding, TensorRowBinding | TableRowBinding):
            return None
        variable, layout, slots = binding.variable, binding.needs.layout, binding.slots
        # For rows of a single number, torch rounds differently from the rules here.
        is_plain = binding.needs.takes_sparse and variable.value.dim() > 1
        if not is_plain or len(slots) < len(layout):
            return None
        kept = {_VALUE: variable} | {
            key: slot for key, slot in slots.items() if not layout[key].is_scalar
        }
        storage: TensorRows | TableRows
        if variable.arena is None:
            storage = TensorRows({key: each.value for key, each in kept.items()})
        else:
            table = variable.arena.table
            arenas = {key: each.arena for key, each in kept.items() if each.arena is not None}
            if any([arena.is_narrow for arena in arenas.values()]):
                # They are rounded at random when they are stored.
                return None
            count = None if table.is_dynamic else variable.spec.tensor.shape[0]
            storage = TableRows(table, arenas, count, memory_limit)
        return None if storage.arrays() is None else cls(variable, place, layout, slots, storage)

    def fits(self, gradients: StepGradients) -> bool:
        """Return whether its gradient has distinct rows that exist, in ascending order."""
        gradient, rows = gradients.each[self.place], gradients.rows[self.place]
        if rows is None or rows.dtype != torch.int64 or rows.dim() != 1:
            return False
        is_like = gradient.dtype == self.dtype and gradient.shape == (len(rows), *self._row)
        return is_like and self.storage.find(rows)


class _JointRows:
    """Copies of the rows of several variables, stepped as if they were of one.

    Args:
        parameters: Variables of one dtype, with state of the same kinds and with equal scalars.
        gradients: The gradients of the step.

    Raises:
        ResourceExhaustedError: There is not enough memory.
    """

    def __init__(self, parameters: Sequence[RowParameter], gradients: StepGradients) -> None:
        self._parameters = parameters
        ends = accumulate((len(each.storage.positions) for each in parameters), initial=0)
        self._spans = list(map(slice, *zip(*pairwise(ends), strict=True)))
        self.gradient = _joined([gradients.each[each.place].view(-1) for each in parameters])
        self.scalars = {key: value.clone() for key, value in parameters[0].scalars.items()}
        self._arrays = [_arrays(each) for each in parameters]
        count = self._spans[-1].stop
        self._wholes: Mapping[str, Wholes] = {
            key: np.empty(count, first.dtype) for key, first in self._arrays[0].items()
        }
        for each, span, arrays in zip(parameters, self._spans, self._arrays, strict=True):
            positions = each.storage.positions
            for key, array in arrays.items():
                array.take(positions, self._wholes[key][span])
        self._begin_new()

    def _begin_new(self) -> None:
        """Make the rows that are not stored yet."""
        places, asked = list[tuple[str, Positions]](), list[tuple[InitialValues, torch.Tensor]]()
        for each, span in zip(self._parameters, self._spans, strict=True):
            storage = each.storage
            if isinstance(storage, TableRows) and storage.found.num_new:
                new = storage.found.new + span.start
                for key, arena in storage.arenas.items():
                    places.append((key, new))
                    asked.append((arena.initial, storage.found.new_keys))
        for (key, rows), values in zip(places, initial_rows(asked), strict=True):
            wholes = self._wholes[key]
            wholes[rows] = values.view(torch.uint8).numpy().reshape(-1).view(wholes.dtype)

    def step(self, rule: SparseRule, settings: GroupSettings, in_parts: bool) -> None:
        """Step the copies, so that a failure has changed nothing.

        Args:
            rule: Steps them.
            settings: The hyperparameters.
            in_parts: Whether some rows at a time give the same bytes.
        """
        count, scalars = max(1, self._spans[-1].stop), self.scalars
        elements = {
            key: as_elements(wholes, self._dtype(key)) for key, wholes in self._wholes.items()
        }
        rows = max(1, _STEPPED_AT_ONCE * count // max(1, len(self.gradient))) if in_parts else count

        def some(of: torch.Tensor, begin: int) -> torch.Tensor:
            width = len(of) // count
            return of[begin * width : (begin + rows) * width]

        for begin in range(0, count, rows):
            parts = {key: some(each, begin) for key, each in elements.items()}
            # Each part takes the same step.
            self.scalars = {key: scalar.clone() for key, scalar in scalars.items()}
            value, gradient = parts.pop(_VALUE), some(self.gradient, begin)
            rule(settings.values, value, gradient, self.scalars | parts)

    def _dtype(self, key: str) -> torch.dtype:
        first = self._parameters[0]
        return first.layout[key].dtype if key else first.dtype

    def put(self, undo: Undo) -> None:
        """Write the rows back."""
        each_span = zip(self._parameters, self._spans, self._arrays, strict=True)
        for each, span, arrays in each_span:
            positions = each.storage.begin_write()
            undo.drop_copies()
            each.storage.put(positions, {key: self._wholes[key][span] for key in arrays})
            for key, value in each.scalars.items():
                value.copy_(self.scalars[key])


def _arrays(parameter: RowParameter) -> Mapping[str, RowArray]:
    arrays = parameter.storage.arrays()
    assert arrays is not None
    return arrays


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class RowGroup:
    """Variables whose rows are stepped by a rule for sparse gradients.

    Args:
        number: The number of the param group.
        settings: The hyperparameters of the last step.
        parameters: The variables.
    """

    is_by_rows = True

    def __init__(
        self, number: int, settings: GroupSettings, parameters: Sequence[RowParameter]
    ) -> None:
        self._number, self._parameters = number, parameters
        self._adopt(settings)
        self._stepped: list[_JointRows] = []

    def _adopt(self, settings: GroupSettings) -> None:
        dtypes = {each.dtype for each in self._parameters}
        self._settings = settings
        self._rules = {
            dtype: sparse_rule(settings.rule, settings.values, dtype)
            if settings.is_safe(dtype)
            else None
            for dtype in dtypes
        }
        self._joinable = {
            dtype for dtype in dtypes if is_joinable(settings.rule, settings.values, dtype)
        }

    @property
    def has_rules(self) -> bool:
        """Whether there is a rule for each variable."""
        return None not in self._rules.values()

    def accepts(self, groups: Sequence[GroupSettings], gradients: StepGradients) -> bool:
        if (settings := groups[self._number]) is not self._settings:
            for each in self._parameters:
                needs = settings.needs(each.dtype, sparse=True)
                if not needs.takes_sparse or needs.layout is not each.layout:
                    return False
            self._adopt(settings)
        places = [each.place for each in self._parameters if isinstance(each.storage, TableRows)]
        rows = [gradients.rows[place] for place in places]
        are_few = sum([each.numel() for each in rows if each is not None]) <= _MOST_FOUND
        fit = self.has_rules and are_few
        fit = fit and all([one.fits(gradients) for one in self._parameters])
        if not fit:
            self._forget()
        return fit

    def _forget(self) -> None:
        # What was found, and the copies, are as large as a request, so they must not stay.
        self._stepped = []
        for each in self._parameters:
            each.storage.forget()

    def step(self, gradients: StepGradients) -> None:
        try:
            for each in self._parameters:
                each.storage.make_room()
            for together in self._together():
                rule = self._rules[together[0].dtype]
                assert rule is not None
                joint = _JointRows(together, gradients)
                joint.step(rule, self._settings, in_parts=together[0].dtype in self._joinable)
                self._stepped.append(joint)
        except BaseException:
            self._forget()
            raise

    def _together(self) -> Iterator[Sequence[RowParameter]]:
        """Yield the variables by what they must have in common to be stepped as one."""
        kinds = dict[object, list[RowParameter]]()
        for each in self._parameters:
            apart = None if each.dtype in self._joinable else each.place
            scalars = tuple([value.item() for value in each.scalars.values()])
            kinds.setdefault((each.dtype, each.sizes, scalars, apart), []).append(each)
        yield from kinds.values()

    def put(self, undo: Undo) -> None:
        try:
            for joint in self._stepped:
                joint.put(undo)
        finally:
            self._forget()

    def commit(self, store: VariableStore) -> None:
        for parameter in self._parameters:
            for slot in parameter.slots.values():
                slot.version += 1
