"""Many small variables that are stepped as if they were one.

What takes longest about a step of small tensors is to call torch for each of them:
AdamW of the five of a recommender with 44,000 elements takes 131 us, and of one tensor
with as many 63.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from stratagem_psserver.optimization.bindings import ParameterBinding, WholeBinding
from stratagem_psserver.optimization.certainty import is_ordinary_state
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.repeated_groups import Gradients, Group
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.variables.joining import joined
from stratagem_psserver.variables.store import VariableStore

# Larger ones do not stay in a processor's cache from one operation to the next.
_MOST_BYTES = 1 << 20


@dataclass(eq=False)
class Joint:
    """The variables of a param group, where they lie one behind the other.

    Attributes:
        value: All of their values.
        begin: Of their gradients among the elements of those of all groups.
        state: That of all of them, by the optimizer's keys. Where every variable has
            one number, it is that of the first one.
        numbers: Those of all variables, by such keys.
    """

    value: torch.Tensor
    begin: int
    state: dict[str, torch.Tensor]
    numbers: Mapping[str, torch.Tensor]

    @classmethod
    def of(
        cls,
        store: VariableStore,
        settings: Settings,
        bindings: Sequence[ParameterBinding],
        before: int,
    ) -> Joint | None:
        """They, moved there; None if they are better stepped apart, or have to be.

        Args:
            store: Where the variables are.
            settings: Hyperparameters of the group.
            bindings: Its variables, with what they were stepped with last.
            before: Bytes of the gradients of the groups before it.
        """
        whole = [binding for binding in bindings if isinstance(binding, WholeBinding)]
        if len(whole) < len(bindings) or not _can_be_joined(settings, whole):
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
                # They are as far apart as tensors that begin on their own.
                numbers[key] = memory.view(len(whole), -1)[:, 0]
                state[key] = numbers[key][0]
        return cls(value, before // value.itemsize, state, numbers)

    def gradient(self, all_groups: torch.Tensor) -> torch.Tensor:
        """That of them among those of all groups."""
        size = self.value.numel()
        if size == all_groups.numel():
            return all_groups
        return all_groups.narrow(0, self.begin, size)

    def distinct_numbers(self) -> Iterator[tuple[str, Sequence[float]]]:
        """Numbers of the variables: one of them, if all have the same."""
        for key, numbers in self.numbers.items():
            first, *others = each = numbers.tolist()
            yield key, each if others.count(first) < len(others) else [first]

    def take(self, made: Mapping[str, torch.Tensor]) -> None:
        """Takes over the state that an optimizer has made of that of all."""
        for key, ours in self.state.items():
            if made[key] is not ours:
                ours.copy_(made[key])
        for key, numbers in self.numbers.items():
            numbers.copy_(self.state[key])


def _can_be_joined(settings: Settings, bindings: Sequence[WholeBinding]) -> bool:
    values = [binding.variable.value for binding in bindings]
    dtype, layout = values[0].dtype, bindings[0].layout
    return (
        len(bindings) > 1
        and sum(value.nbytes for value in values) <= _MOST_BYTES
        and all(value.dtype == dtype for value in values)
        and all(len(binding.slots) == len(layout) for binding in bindings)
        and all(kept.dtype in (torch.float32, dtype) for kept in layout.values())
        and settings.is_elementwise(dtype)
    )


class JointGroup:
    """As the group of the same variables, where all gradients lie together, too.

    Args:
        number: Of the param group.
        settings: Its hyperparameters, which steps were taken with.
        apart: The group.
        joint: Its variables.
    """

    is_by_rows = False

    def __init__(
        self, number: int, settings: Settings, apart: Group, joint: Joint
    ) -> None:
        self._number, self._settings = number, settings
        self._apart, self._joint = apart, joint
        self._optimizer: Optimizer | None = None
        # Whether all variables have the same numbers.
        self._agree = False

    def put(self) -> None:
        pass

    def accepts(self, groups: Sequence[Settings], gradients: Gradients) -> bool:
        if not self._apart.takes(groups):
            return False
        if (settings := groups[self._number]) is not self._settings:
            self._settings, self._optimizer = settings, None
        numbers = list(self._joint.distinct_numbers())
        self._agree = all([len(each) == 1 for _, each in numbers])
        return all(
            [is_ordinary_state(key, one) for key, each in numbers for one in each]
        )

    def step(self, gradients: Gradients) -> None:
        joint = self._joint
        if gradients.joint is None or not self._agree or not self._is_elementwise():
            return self._apart.step(gradients)
        optimizer = self._optimizer = self._optimizer or self._made()
        try:
            joint.value.grad = joint.gradient(gradients.joint)
            take_step(optimizer, sparse=False)
        finally:
            joint.value.grad = None
        joint.take(optimizer.state[joint.value])

    def _is_elementwise(self) -> bool:
        return self._settings.is_elementwise(self._joint.value.dtype)

    def _made(self) -> Optimizer:
        value = self._joint.value
        optimizer = self._settings.prototype.optimizer([value], fresh=[])
        optimizer.state = defaultdict(dict, {value: self._joint.state})
        return optimizer

    def commit(self, store: VariableStore) -> None:
        self._apart.commit(store)
