"""Steps of optimizers that were checked, and change variables only now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.limits.room import Room
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.loans import Lent, Loan
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.variables.store import Variable, VariableStore


@dataclass
class Group:
    """A param group with those of its variables that have a gradient."""

    settings: Settings
    loans: list[Loan] = field(default_factory=list)

    def step(self, all_lent: Sequence[Lent]) -> None:
        fresh = [lent.tensor for lent in all_lent if not lent.state]
        parameters = [lent.tensor for lent in all_lent]
        optimizer = self.settings.prototype.optimizer(parameters, fresh)
        for lent in all_lent:
            lent.tensor.grad = lent.gradient
            if lent.state:
                optimizer.state[lent.tensor] = lent.state
        take_step(optimizer, any(lent.gradient.is_sparse for lent in all_lent))
        for lent, loan in zip(all_lent, self.loans, strict=True):
            lent.tensor.grad = None
            loan.close(optimizer.state.get(lent.tensor, {}))


@dataclass
class OptimizerStep:
    """A checked step. Call `run` once, on any thread, then `Optimizers.commit`."""

    program: OptimizerProgram
    groups: list[Group]
    variables: list[Variable]
    nbytes: int
    room: Room

    def run(self) -> None:
        """Changes the values of the variables and their slots.

        Raises:
            ResourceExhaustedError: There is no memory for it; nothing is changed.
        """
        opened = [
            [loan.open(self.room) for loan in group.loans] for group in self.groups
        ]
        for group, lent in zip(self.groups, opened, strict=True):
            if lent:
                group.step(lent)

    def commit(self, store: VariableStore) -> None:
        """Lets the store know what has come of the state."""
        for group in self.groups:
            for loan in group.loans:
                loan.commit(store)
