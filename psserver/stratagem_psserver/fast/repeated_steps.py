"""Steps that were checked once and are repeated with other gradients.

For many small variables, finding the state and checking that everything fits takes about as long as
the step itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeVar

import torch
from torch.optim import Optimizer

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.wire.segment import starts
from stratagem_psserver.fast.row_groups import RowGroup, RowParameter
from stratagem_psserver.fast.same_bytes import is_elementwise
from stratagem_psserver.optimization.bindings import ParameterBinding, WholeBinding, as_tensor
from stratagem_psserver.optimization.gradients import StepGradients
from stratagem_psserver.optimization.optimizers import LARGE, CheckedStep, Group, Optimizers, Undo
from stratagem_psserver.optimization.torch_rules import (
    NUMBERS,
    GroupSettings,
    StateLayout,
    is_safe_number,
    settings_of,
    take_step,
)
from stratagem_psserver.variables.store import Variable, VariableStore, joined


class RepeatedGroup(Protocol):
    """Variables of one param group, with an optimizer that is kept for them.

    Attributes:
        is_by_rows: Whether `step` changes copies of rows, which `put` writes back.
    """

    is_by_rows: bool

    def accepts(self, groups: Sequence[GroupSettings], gradients: StepGradients) -> bool:
        """Adopt hyperparameters for the next step, and return whether the step can be repeated.

        It cannot if the hyperparameters need other state, if the gradients do not fit, or if a
        number is not safe, so that the step may fail.

        Args:
            groups: The settings of all groups.
            gradients: The gradients of the next step.
        """

    def step(self, gradients: StepGradients) -> None:
        """Change variables and state, given the gradients of the whole step."""

    def put(self, undo: Undo) -> None:
        """Write back copies of rows; call it when all groups are stepped.

        Args:
            undo: Gets to know when something is changed.
        """

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


@dataclass(eq=False)
class WholeParameter:
    """A variable that is stepped whole, with its state.

    Attributes:
        value: The variable's value.
        place: The place of its gradient among those of the step.
        layout: The layout of the state.
        slots: The variables that keep the state, by the optimizer's keys.
        state: The state as the optimizer holds it.
    """

    value: torch.Tensor
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]
    state: dict[str, Any]

    @classmethod
    def from_binding(cls, binding: ParameterBinding, place: int) -> WholeParameter | None:
        """Return the variable if its gradient is dense and every state entry is a tensor."""
        if not isinstance(binding, WholeBinding) or len(binding.slots) < len(binding.layout):
            return None
        layout, slots = binding.layout, binding.slots
        state = {key: layout[key].bound(slot.value) for key, slot in slots.items()}
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            return None
        return cls(binding.variable.value, place, layout, slots, state)

    def __post_init__(self) -> None:
        self._numbers = [key for key in NUMBERS if key in self.state]

    @property
    def is_safe(self) -> bool:
        """Whether all numbers of the state are safe, so that no step fails because of them."""
        return all(is_safe_number(key, self.state[key].item()) for key in self._numbers)


class WholeGroup:
    """Variables that are stepped one by one, in place.

    Args:
        number: The number of the param group.
        settings: The hyperparameters of the last step.
        parameters: The variables.
    """

    is_by_rows = False

    def __init__(
        self, number: int, settings: GroupSettings, parameters: Sequence[WholeParameter]
    ) -> None:
        self._number, self.parameters = number, parameters
        self._dtypes = {each.value.dtype for each in parameters}
        self._settings = settings
        self._optimizer: Optimizer | None = None

    def accepts(self, groups: Sequence[GroupSettings], gradients: StepGradients) -> bool:
        return self.accepts_settings(groups) and all([each.is_safe for each in self.parameters])

    def accepts_settings(self, groups: Sequence[GroupSettings]) -> bool:
        """Adopt hyperparameters like `accepts`, without checking the numbers of the state."""
        settings = groups[self._number]
        if settings is not self._settings:
            for each in self.parameters:
                needs = settings.needs(each.value.dtype, sparse=False)
                if needs.layout is not each.layout:
                    return False
            self._settings, self._optimizer = settings, None
        return all([settings.is_safe(dtype) for dtype in self._dtypes])

    def put(self, undo: Undo) -> None:
        pass

    def step(self, gradients: StepGradients) -> None:
        optimizer = self._optimizer = self._optimizer or self._made()
        try:
            for each in self.parameters:
                each.value.grad = gradients.each[each.place]
            take_step(optimizer, sparse=False)
        finally:
            for each in self.parameters:
                each.value.grad = None

    def _made(self) -> Optimizer:
        values = [each.value for each in self.parameters]
        optimizer = self._settings.prototype.optimizer(values, fresh=[])
        states = ((each.value, each.state) for each in self.parameters)
        optimizer.state = defaultdict(dict, states)
        return optimizer

    def commit(self, store: VariableStore) -> None:
        for each in self.parameters:
            for key, value in each.state.items():
                slot = each.slots[key]
                if slot.value is value:
                    slot.version += 1
                else:
                    store.put_value(slot.name, as_tensor(value, each.layout[key].dtype))


# Larger vectors do not stay in a processor's cache from one operation to the next.
_MOST_BYTES = 1 << 20


@dataclass(eq=False)
class FlatParameters:
    """The variables of a param group in joint memory.

    Attributes:
        value: The vector of all their values.
        begin: Where their gradients begin in the vector of the gradients of all groups.
        state: The state of all variables as one vector, by the optimizer's keys; a key with one
            number per variable has the number of the first variable.
        numbers: The numbers of all variables, by the keys that have one number per variable.
    """

    value: torch.Tensor
    begin: int
    state: dict[str, torch.Tensor]
    numbers: Mapping[str, torch.Tensor]

    @classmethod
    def from_bindings(
        cls,
        store: VariableStore,
        settings: GroupSettings,
        bindings: Sequence[ParameterBinding],
        before: int,
    ) -> FlatParameters | None:
        """Move variables into joint memory; return None if they cannot be stepped as one vector.

        Args:
            store: The store of the variables.
            settings: The hyperparameters of the group.
            bindings: The bindings of the variables in their last step.
            before: The offset of the group's gradients in that of all groups, in bytes.
        """
        whole = [binding for binding in bindings if isinstance(binding, WholeBinding)]
        if len(whole) < len(bindings) or not _can_be_flat(settings, whole):
            return None
        value = joined(store, [binding.variable for binding in whole])
        if value is None:
            return None
        state, numbers = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for key, kept in whole[0].layout.items():
            memory = joined(store, [binding.slots[key] for binding in whole])
            if memory is None:
                return None
            state[key] = memory
            if kept.is_scalar:
                # Joint memory places scalars at the same distances as it does tensors.
                numbers[key] = memory.view(len(whole), -1)[:, 0]
                state[key] = numbers[key][0]
        return cls(value, before // value.itemsize, state, numbers)

    def gradient(self, all_groups: torch.Tensor) -> torch.Tensor:
        """Return the gradient of these variables, a part of that of all groups."""
        size = self.value.numel()
        if size == all_groups.numel():
            return all_groups
        return all_groups.narrow(0, self.begin, size)

    def distinct_numbers(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Yield each key with the numbers of the variables; only one number if all are equal."""
        for key, numbers in self.numbers.items():
            first, *others = each = numbers.tolist()
            yield key, each if others.count(first) < len(others) else [first]

    def take_over(self, made: Mapping[str, torch.Tensor]) -> None:
        """Copy the state that an optimizer has made into the state of the variables."""
        for key, ours in self.state.items():
            if made[key] is not ours:
                ours.copy_(made[key])
        for key, numbers in self.numbers.items():
            numbers.copy_(self.state[key])


def _can_be_flat(settings: GroupSettings, bindings: Sequence[WholeBinding]) -> bool:
    values = [binding.variable.value for binding in bindings]
    dtype, layout = values[0].dtype, bindings[0].layout
    return (
        len(bindings) > 1
        and sum(value.nbytes for value in values) <= _MOST_BYTES
        and all(value.dtype == dtype for value in values)
        and all(len(binding.slots) == len(layout) for binding in bindings)
        and all(kept.dtype in (torch.float32, dtype) for kept in layout.values())
        and _is_elementwise(settings, dtype)
    )


def _is_elementwise(settings: GroupSettings, dtype: torch.dtype) -> bool:
    safe = settings.is_safe(dtype)
    return safe and is_elementwise(settings.rule, settings.values, dtype)


class FlatGroup:
    """A group of variables that is stepped as one vector if its gradients are in one, too.

    Args:
        number: The number of the param group.
        settings: The hyperparameters of the last step.
        separate: The same group, which steps the variables one by one.
        flat: The variables as one vector.
    """

    is_by_rows = False

    def __init__(
        self, number: int, settings: GroupSettings, separate: WholeGroup, flat: FlatParameters
    ) -> None:
        self._number, self._settings = number, settings
        self._separate, self._flat = separate, flat
        self._optimizer: Optimizer | None = None
        self._is_elementwise = _is_elementwise(settings, flat.value.dtype)
        # Whether the scalars in the state are equal for all variables.
        self._agree = False

    def put(self, undo: Undo) -> None:
        pass

    def accepts(self, groups: Sequence[GroupSettings], gradients: StepGradients) -> bool:
        if not self._separate.accepts_settings(groups):
            return False
        if (settings := groups[self._number]) is not self._settings:
            self._settings, self._optimizer = settings, None
            self._is_elementwise = _is_elementwise(settings, self._flat.value.dtype)
        numbers = list(self._flat.distinct_numbers())
        self._agree = all([len(each) == 1 for _, each in numbers])
        return all([is_safe_number(key, one) for key, each in numbers for one in each])

    def step(self, gradients: StepGradients) -> None:
        flat = self._flat
        if gradients.flat is None or not self._agree or not self._is_elementwise:
            return self._separate.step(gradients)
        optimizer = self._optimizer = self._optimizer or self._made()
        try:
            flat.value.grad = flat.gradient(gradients.flat)
            take_step(optimizer, sparse=False)
        finally:
            flat.value.grad = None
        flat.take_over(optimizer.state[flat.value])

    def _made(self) -> Optimizer:
        value = self._flat.value
        optimizer = self._settings.prototype.optimizer([value], fresh=[])
        optimizer.state = defaultdict(dict, {value: self._flat.state})
        return optimizer

    def commit(self, store: VariableStore) -> None:
        self._separate.commit(store)


_NONE = StepGradients(())

Made = TypeVar("Made")


class RepeatedStep:
    """A step whose state exists, so that it can be repeated.

    It is valid until a variable of the store is added, removed or replaced. The caller holds the
    locks of its variables from `begin` to `Optimizers.commit`.

    Args:
        checked: The checked step that it repeats.
        groups: The param groups that have variables.

    Attributes:
        program: The optimizer program.
        variables: The variables to step, in the order of the gradients.
        nbytes: The size of the gradients of the latest `begin`.
        is_flat: Whether a group is stepped faster if all gradients are in one vector.
    """

    def __init__(self, checked: CheckedStep, groups: Sequence[RepeatedGroup]) -> None:
        # A copy without hyperparameters, which does not keep the request in memory.
        self.program = OptimizerProgram(
            name=checked.program.name, class_name=checked.program.class_name
        )
        self.variables = checked.variables
        self.nbytes = checked.nbytes
        # Groups of rows come first, since they can fail without having changed anything.
        self._groups = sorted(groups, key=lambda group: not group.is_by_rows)
        self._number_of_groups = len(checked.groups)
        self.is_flat = any(isinstance(group, FlatGroup) for group in groups)
        self._gradients = _NONE

    @classmethod
    def from_checked(cls, checked: CheckedStep, store: VariableStore) -> RepeatedStep | None:
        """Return a repeated step, or None if the step must be checked each time.

        Args:
            checked: The step, which was run and committed.
            store: The store of its variables. They may be moved in memory, so the caller holds
                their locks.
        """
        making = _Making(checked, store)
        made = [
            group
            for number, each in enumerate(checked.groups)
            for group in making.groups(number, each)
        ]
        groups = [group for group in made if group is not None]
        return cls(checked, groups) if len(groups) == len(made) else None

    def begin(
        self, optimizers: Optimizers, program: OptimizerProgram, gradients: StepGradients
    ) -> bool:
        """Set the hyperparameters and gradients of the next step.

        Args:
            optimizers: The optimizers of the store.
            program: The step's program, perhaps with other hyperparameters.
            gradients: StepGradients of the step's variables, of the same kinds as before.

        Returns:
            Whether the step can be repeated; if not, the update must be checked in full.

        Raises:
            InvalidArgumentError: A hyperparameter is not acceptable.
            AlreadyExistsError: The optimizer's name belongs to another class.
        """
        optimizers.check_class(program)
        settings = [settings_of(program.class_name, each) for each in program.groups]
        same = len(settings) == self._number_of_groups
        taken = same and all(group.accepts(settings, gradients) for group in self._groups)
        if taken:
            # Only accepted gradients are kept, since `run` drops them.
            self._gradients = gradients
            self.nbytes = sum([each.nbytes for each in gradients.each])
        return taken

    def run(self) -> None:
        """Change the values of the variables and their slots.

        Raises:
            ResourceExhaustedError: There is not enough memory; nothing is changed.
            DataLossError: There was none when some variables were changed already.
        """
        # Their memory belongs to the request, so no reference may remain after the step.
        gradients, self._gradients = self._gradients, _NONE
        with Undo(self.program.class_name) as undo:
            if self.nbytes > LARGE:
                undo.require_memory(gradients.each)
            for group in self._groups:
                undo.begun = not group.is_by_rows
                group.step(gradients)
            for group in self._groups:
                group.put(undo)

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""
        for group in self._groups:
            group.commit(store)


class _Making:
    """Makes the repeated groups of a checked step."""

    def __init__(self, checked: CheckedStep, store: VariableStore) -> None:
        self._store = store
        variables = checked.variables
        self._places = {id(each): place for place, each in enumerate(variables)}
        # If a gradient is row-sparse, the dense ones have other offsets than those below.
        self._has_rows = any(
            binding.is_by_rows for group in checked.groups for binding in group.bindings
        )
        self._begins, _ = starts([each.value.nbytes for each in variables])

    def groups(self, number: int, checked: Group) -> Iterator[RepeatedGroup | None]:
        """Yield the repeated groups of a param group, or None if it cannot be repeated."""
        by_rows = [binding for binding in checked.bindings if binding.is_by_rows]
        whole = [binding for binding in checked.bindings if not binding.is_by_rows]
        settings = checked.settings
        if not isinstance(settings, GroupSettings):
            # Nothing is known about when a traced step fails, so each is checked.
            yield None
            return
        if whole:
            yield self._whole(number, settings, whole)
        if by_rows:
            yield self._by_rows(number, settings, by_rows)

    def _whole(
        self, number: int, settings: GroupSettings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        places = self._places_of(bindings)
        flat = self._flat(settings, bindings, places)
        parameters = _all_made(map(WholeParameter.from_binding, bindings, places))
        if parameters is None:
            return None
        group = WholeGroup(number, settings, parameters)
        return FlatGroup(number, settings, group, flat) if flat else group

    def _by_rows(
        self, number: int, settings: GroupSettings, bindings: Sequence[ParameterBinding]
    ) -> RepeatedGroup | None:
        limit = repeat(self._store.memory_limit)
        parameters = _all_made(
            map(RowParameter.from_binding, bindings, self._places_of(bindings), limit)
        )
        group = RowGroup(number, settings, parameters or ())
        return group if parameters and group.has_rules else None

    def _places_of(self, bindings: Sequence[ParameterBinding]) -> list[int]:
        return [self._places[id(binding.variable)] for binding in bindings]

    def _flat(
        self, settings: GroupSettings, bindings: Sequence[ParameterBinding], places: Sequence[int]
    ) -> FlatParameters | None:
        first = places[0]
        is_run = list(places) == list(range(first, first + len(places)))
        if not is_run or self._has_rows:
            return None
        begin = self._begins[first]
        return FlatParameters.from_bindings(self._store, settings, bindings, begin)


def _all_made(made: Iterable[Made | None]) -> list[Made] | None:
    """Return all objects; None if one of them is None."""
    each = list(made)
    found = [one for one in each if one is not None]
    return found if len(found) == len(each) else None
