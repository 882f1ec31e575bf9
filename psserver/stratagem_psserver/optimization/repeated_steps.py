"""Steps that were checked once and are taken again, with other gradients.

What takes longest about a step of many small variables, besides the step, is to find
out what it needs: state, names, and that everything fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.loans import Loan, WholeLoan, as_tensor
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.steps import OptimizerStep
from stratagem_psserver.variables.store import Variable, VariableStore


@dataclass(eq=False)
class _Parameter:
    """A variable with its state.

    Attributes:
        value: That of the variable.
        place: Of its gradient among those of the step.
        layout: Of the state.
        slots: Where the state is kept, by the optimizer's keys.
        state: What the optimizer makes of it.
    """

    value: torch.Tensor
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]
    state: dict[str, Any]

    @classmethod
    def of(cls, loan: Loan, place: int) -> _Parameter | None:
        """It, if the gradient is dense and the state is there, all of it tensors."""
        if not isinstance(loan, WholeLoan) or len(loan.slots) < len(loan.layout):
            return None
        layout, slots = loan.layout, loan.slots
        state = {key: layout[key].lent(slot.value) for key, slot in slots.items()}
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            return None
        return cls(loan.variable.value, place, layout, slots, state)

    def commit(self, store: VariableStore) -> None:
        for key, value in self.state.items():
            slot = self.slots[key]
            if slot.value is value:
                slot.version += 1
            else:
                store.put_value(slot.name, as_tensor(value, self.layout[key].dtype))


class _Group:
    """Variables of one param group, and an optimizer that stays with them.

    Args:
        number: Of the param group.
        settings: Its hyperparameters, which steps were taken with.
        parameters: The variables.
    """

    def __init__(
        self, number: int, settings: Settings, parameters: Sequence[_Parameter]
    ) -> None:
        self._number, self._parameters = number, parameters
        self._settings, self._optimizer = settings, self._made(settings)

    def _made(self, settings: Settings) -> Optimizer:
        values = [each.value for each in self._parameters]
        optimizer = settings.prototype.optimizer(values, fresh=[])
        states = ((each.value, each.state) for each in self._parameters)
        optimizer.state = defaultdict(dict, states)
        return optimizer

    def accepts(self, groups: Sequence[Settings]) -> bool:
        """Takes other hyperparameters, unless the state is another one with them."""
        settings = groups[self._number]
        if settings is self._settings:
            return True
        for each in self._parameters:
            if settings.needs(each.value.dtype, sparse=False).layout is not each.layout:
                return False
        self._settings, self._optimizer = settings, self._made(settings)
        return True

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        try:
            for each in self._parameters:
                each.value.grad = gradients[each.place]
            take_step(self._optimizer, sparse=False)
        finally:
            for each in self._parameters:
                each.value.grad = None

    def commit(self, store: VariableStore) -> None:
        for each in self._parameters:
            each.commit(store)


class RepeatedStep:
    """A step of dense gradients whose state is all there.

    It holds until a variable of the store comes, goes or is replaced. Who takes it has
    the locks of its variables from `Optimizers.repeat` to `Optimizers.commit`.

    Args:
        checked: The step as it was taken before.
        groups: Those of its param groups that have variables.

    Attributes:
        program: The optimizer.
        variables: What is stepped, in the order of the gradients.
        nbytes: Size of the gradients.
    """

    def __init__(self, checked: OptimizerStep, groups: Sequence[_Group]) -> None:
        # Without hyperparameters, and without the request that it was part of.
        self.program = OptimizerProgram(
            name=checked.program.name, class_name=checked.program.class_name
        )
        self.variables = checked.variables
        self.nbytes = checked.nbytes
        self._groups, self._number_of_groups = groups, len(checked.groups)
        self._gradients: Sequence[torch.Tensor] = ()

    @classmethod
    def of(cls, checked: OptimizerStep) -> RepeatedStep | None:
        """The step, if it can be taken again without another check."""
        places = {id(each): place for place, each in enumerate(checked.variables)}
        groups = []
        for number, group in enumerate(checked.groups):
            found = [
                _Parameter.of(loan, places[id(loan.variable)]) for loan in group.loans
            ]
            parameters = [each for each in found if each is not None]
            if len(parameters) < len(found):
                return None
            if parameters:
                groups.append(_Group(number, group.settings, parameters))
        return cls(checked, groups)

    def begin(
        self, settings: Sequence[Settings], gradients: Sequence[torch.Tensor]
    ) -> bool:
        """As `Optimizers.repeat`, with the hyperparameters of each group."""
        same = len(settings) == self._number_of_groups
        taken = same and all(group.accepts(settings) for group in self._groups)
        if taken:
            # What is refused must not stay here.
            self._gradients = gradients
        return taken

    def run(self) -> None:
        """Changes the values of the variables and their slots."""
        # They are in the memory of a request that is answered when this is over.
        gradients, self._gradients = self._gradients, ()
        for group in self._groups:
            group.step(gradients)

    def commit(self, store: VariableStore) -> None:
        """Lets the store know what has come of the state."""
        for group in self._groups:
            group.commit(store)
