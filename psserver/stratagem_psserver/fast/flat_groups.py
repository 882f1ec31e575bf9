"""Groups of many small variables that are stepped as one vector.

Otherwise most of the time of such a step would go into calls of torch, one for each tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from stratagem_psserver.fast.elementwise import is_elementwise
from stratagem_psserver.fast.repeated_groups import Gradients, WholeGroup
from stratagem_psserver.optimization.bindings import ParameterBinding, WholeBinding
from stratagem_psserver.optimization.certainty import is_ordinary_state
from stratagem_psserver.optimization.hyperparameters import GroupSettings
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.undo import Undo
from stratagem_psserver.variables.joining import joined
from stratagem_psserver.variables.store import VariableStore

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
    def of(
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
    ordinary = settings.is_ordinary(dtype)
    return ordinary and is_elementwise(settings.rule, settings.values, dtype)


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

    def accepts(self, groups: Sequence[GroupSettings], gradients: Gradients) -> bool:
        if not self._separate.accepts_settings(groups):
            return False
        if (settings := groups[self._number]) is not self._settings:
            self._settings, self._optimizer = settings, None
            self._is_elementwise = _is_elementwise(settings, self._flat.value.dtype)
        numbers = list(self._flat.distinct_numbers())
        self._agree = all([len(each) == 1 for _, each in numbers])
        return all([is_ordinary_state(key, one) for key, each in numbers for one in each])

    def step(self, gradients: Gradients) -> None:
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
