"""Steps of optimizers that were checked, and change variables only now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.limits.room import Room
from stratagem_psserver.optimization.certainty import NUMBERS, is_ordinary_state
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.loans import Lent, Loan, WholeLoan
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.undo import Undo
from stratagem_psserver.variables.store import Variable, VariableStore

States: TypeAlias = Sequence[Mapping[str, Any]]
"""What an optimizer has made of the state of each of its parameters."""


@dataclass
class Group:
    """A param group with those of its variables that have a gradient."""

    settings: Settings
    loans: list[Loan] = field(default_factory=list)

    def step(self, all_lent: Sequence[Lent]) -> States:
        """Changes what was lent; variables of which rows were lent stay as they are."""
        if not all_lent:
            return ()
        fresh = [lent.tensor for lent in all_lent if not lent.state]
        parameters = [lent.tensor for lent in all_lent]
        optimizer = self.settings.prototype.optimizer(parameters, fresh)
        try:
            for lent in all_lent:
                lent.tensor.grad = lent.gradient
                if lent.state:
                    optimizer.state[lent.tensor] = lent.state
            take_step(optimizer, any(lent.gradient.is_sparse for lent in all_lent))
        finally:
            for lent in all_lent:
                lent.tensor.grad = None
        return [optimizer.state.get(lent.tensor, {}) for lent in all_lent]

    def is_ordinary(self, all_lent: Sequence[Lent]) -> bool:
        """Whether the step does not fail for its numbers."""
        return all(
            self.settings.is_ordinary(lent.tensor.dtype) and _has_ordinary_state(lent)
            for lent in all_lent
        )

    def written(self, all_lent: Sequence[Lent]) -> Iterator[torch.Tensor]:
        """The tensors of variables that the step writes."""
        for loan, lent in zip(self.loans, all_lent, strict=True):
            if not loan.is_by_rows:
                yield lent.tensor
                yield from filter(torch.is_tensor, lent.state.values())

    @property
    def missing(self) -> int:
        """Bytes of the state that the step begins."""
        return sum(loan.missing for loan in self.loans if isinstance(loan, WholeLoan))

    def close(self, states: States, undo: Undo) -> None:
        """Writes rows, and takes back what the optimizer has made."""
        for loan, state in zip(self.loans, states, strict=True):
            loan.close(state)
            if loan.is_by_rows:
                undo.leave()


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
            InvalidArgumentError: torch could not; nothing is changed.
            ResourceExhaustedError: There is no memory for it; nothing is changed.
        """
        with Undo(self.program.class_name) as undo:
            opened = [
                [loan.open(self.room) for loan in group.loans] for group in self.groups
            ]
            written = self._prepare(undo, opened)
            undo.begun = bool(written)
            states = [
                group.step(lent)
                for group, lent in zip(self.groups, opened, strict=True)
            ]
            for group, made in zip(self.groups, states, strict=True):
                group.close(made, undo)

    def _prepare(
        self, undo: Undo, opened: Sequence[Sequence[Lent]]
    ) -> Sequence[torch.Tensor]:
        """Sees to it that nothing is lost; returns what is written in place."""
        pairs = list(zip(self.groups, opened, strict=True))
        written = [each for group, lent in pairs for each in group.written(lent)]
        if all(group.is_ordinary(lent) for group, lent in pairs):
            lent = [each.tensor for lents in opened for each in lents]
            undo.require_memory(lent, sum(group.missing for group in self.groups))
        else:
            undo.keep(written)
        return written

    def commit(self, store: VariableStore) -> None:
        """Lets the store know what has come of the state."""
        for group in self.groups:
            for loan in group.loans:
                loan.commit(store)


def _has_ordinary_state(lent: Lent) -> bool:
    return all(
        is_ordinary_state(key, float(lent.state[key]))
        for key in NUMBERS.keys() & lent.state.keys()
    )
