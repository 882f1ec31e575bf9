"""Checked steps of optimizers, which change variables when they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.bindings import BoundParameter, ParameterBinding, WholeBinding
from stratagem_psserver.optimization.certainty import NUMBERS, is_ordinary_state
from stratagem_psserver.optimization.group_settings import Settings
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.undo import Undo
from stratagem_psserver.variables.store import Variable, VariableStore

States: TypeAlias = Sequence[Mapping[str, Any]]
"""The state of each of an optimizer's parameters after a step."""


@dataclass
class Group:
    """A param group, and the bindings of its variables that have a gradient."""

    settings: Settings
    bindings: list[ParameterBinding] = field(default_factory=list)

    def step(self, all_bound: Sequence[BoundParameter]) -> States:
        """Step the bound tensors, and return the state of each; rows are written back later."""
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
        """Return whether hyperparameters and state are ordinary, so that the step cannot fail."""
        return all(
            self.settings.is_ordinary(bound.tensor.dtype) and _has_ordinary_state(bound)
            for bound in all_bound
        )

    def written(self, all_bound: Sequence[BoundParameter]) -> Iterator[torch.Tensor]:
        """Yield the tensors of variables that the step writes in place."""
        for binding, bound in zip(self.bindings, all_bound, strict=True):
            if not binding.is_by_rows:
                yield bound.tensor
                yield from filter(torch.is_tensor, bound.state.values())

    @property
    def missing(self) -> int:
        """Bytes of the state that the step makes."""
        return sum(
            binding.missing for binding in self.bindings if isinstance(binding, WholeBinding)
        )

    def close(self, states: States, undo: Undo) -> None:
        """Write rows back, and take over the state that the optimizer made."""
        for binding, state in zip(self.bindings, states, strict=True):
            binding.close(state)
            if binding.is_by_rows:
                undo.drop_copies()


class ReadyStep(Protocol):
    """A step that is ready to run. Call `run` once, then `Optimizers.commit`.

    Attributes:
        program: The optimizer program.
        variables: The variables to step, in the order of the gradients.
        nbytes: The size of the gradients.
    """

    program: OptimizerProgram
    variables: list[Variable]
    nbytes: int

    def run(self) -> None:
        """Change the values of the variables and their slots, on any thread."""

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


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
            InvalidArgumentError: torch failed; nothing is changed.
            ResourceExhaustedError: There is not enough memory; nothing is changed.
            DataLossError: torch failed after variables were changed that cannot be restored.
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
        """Look for memory or make copies, so that a failure loses nothing.

        Returns:
            The tensors that are written in place.
        """
        pairs = list(zip(self.groups, opened, strict=True))
        written = [each for group, bound in pairs for each in group.written(bound)]
        if all(group.is_ordinary(bound) for group, bound in pairs):
            bound = [each.tensor for group_bound in opened for each in group_bound]
            undo.require_memory(bound, sum(group.missing for group in self.groups))
        else:
            undo.keep(written)
        return written

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""
        for group in self.groups:
            for binding in group.bindings:
                binding.commit(store)


def _has_ordinary_state(bound: BoundParameter) -> bool:
    return all(
        is_ordinary_state(key, float(bound.state[key]))
        for key in NUMBERS.keys() & bound.state.keys()
    )
