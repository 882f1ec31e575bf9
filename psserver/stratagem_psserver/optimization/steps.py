"""Steps of optimizers that were checked, and change variables only now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.limits.variable_memory_limit import VariableMemoryLimit
from stratagem_psserver.optimization.bindings import BoundParameter, ParameterBinding, WholeBinding
from stratagem_psserver.optimization.certainty import NUMBERS, is_ordinary_state
from stratagem_psserver.optimization.hyperparameters import GroupSettings
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.undo import Undo
from stratagem_psserver.variables.store import Variable, VariableStore

States: TypeAlias = Sequence[Mapping[str, Any]]
"""What an optimizer has made of the state of each of its parameters."""


@dataclass
class Group:
    """A param group with those of its variables that have a gradient."""

    settings: GroupSettings
    bindings: list[ParameterBinding] = field(default_factory=list)

    def step(self, all_bound: Sequence[BoundParameter]) -> States:
        """Change what was lent; variables of which rows were lent stay as they are."""
        if not all_bound:
            return ()
        fresh = [bound.tensor for bound in all_bound if not bound.state]
        parameters = [bound.tensor for bound in all_bound]
        optimizer = self.settings.prototype.optimizer(parameters, fresh)
        try:
            for bound in all_bound:
                bound.tensor.grad = bound.gradient
                if bound.state:
                    optimizer.state[bound.tensor] = bound.state
            take_step(optimizer, any(bound.gradient.is_sparse for bound in all_bound))
        finally:
            for bound in all_bound:
                bound.tensor.grad = None
        return [optimizer.state.get(bound.tensor, {}) for bound in all_bound]

    def is_ordinary(self, all_bound: Sequence[BoundParameter]) -> bool:
        """Return whether the step does not fail for its numbers."""
        return all(
            self.settings.is_ordinary(bound.tensor.dtype) and _has_ordinary_state(bound)
            for bound in all_bound
        )

    def written(self, all_bound: Sequence[BoundParameter]) -> Iterator[torch.Tensor]:
        """Return the tensors of variables that the step writes."""
        for binding, bound in zip(self.bindings, all_bound, strict=True):
            if not binding.is_by_rows:
                yield bound.tensor
                yield from filter(torch.is_tensor, bound.state.values())

    @property
    def missing(self) -> int:
        """Bytes of the state that the step begins."""
        return sum(
            binding.missing for binding in self.bindings if isinstance(binding, WholeBinding)
        )

    def close(self, states: States, undo: Undo) -> None:
        """Write rows, and take back what the optimizer has made."""
        for binding, state in zip(self.bindings, states, strict=True):
            binding.close(state)
            if binding.is_by_rows:
                undo.drop_copies()


class ReadyStep(Protocol):
    """A step that may be taken. Call `run` once, then `Optimizers.commit`.

    Attributes:
        program: The optimizer.
        variables: The variables to step, in the order of the gradients.
        nbytes: Size of the gradients.
    """

    program: OptimizerProgram
    variables: list[Variable]
    nbytes: int

    def run(self) -> None:
        """Change the values of the variables and their slots, on any thread."""

    def commit(self, store: VariableStore) -> None:
        """Tell the store what became of the state."""


@dataclass
class CheckedStep:
    """A checked step. Call `run` once, on any thread, then `Optimizers.commit`."""

    program: OptimizerProgram
    groups: list[Group]
    variables: list[Variable]
    nbytes: int
    memory_limit: VariableMemoryLimit

    def run(self) -> None:
        """Change the values of the variables and their slots.

        Raises:
            InvalidArgumentError: torch could not; nothing is changed.
            ResourceExhaustedError: There is no memory for it; nothing is changed.
        """
        with Undo(self.program.class_name) as undo:
            opened = [
                [binding.open(self.memory_limit) for binding in group.bindings]
                for group in self.groups
            ]
            written = self._prepare(undo, opened)
            undo.begun = bool(written)
            states = [group.step(bound) for group, bound in zip(self.groups, opened, strict=True)]
            for group, made in zip(self.groups, states, strict=True):
                group.close(made, undo)

    def _prepare(
        self, undo: Undo, opened: Sequence[Sequence[BoundParameter]]
    ) -> Sequence[torch.Tensor]:
        """See to it that nothing is lost; return what is written in place."""
        pairs = list(zip(self.groups, opened, strict=True))
        written = [each for group, bound in pairs for each in group.written(bound)]
        if all(group.is_ordinary(bound) for group, bound in pairs):
            bound = [each.tensor for lents in opened for each in lents]
            undo.require_memory(bound, sum(group.missing for group in self.groups))
        else:
            undo.keep(written)
        return written

    def commit(self, store: VariableStore) -> None:
        """Let the store know what has come of the state."""
        for group in self.groups:
            for binding in group.bindings:
                binding.commit(store)


def _has_ordinary_state(bound: BoundParameter) -> bool:
    return all(
        is_ordinary_state(key, float(bound.state[key]))
        for key in NUMBERS.keys() & bound.state.keys()
    )
