"""Steps on variables of a server, by gradients of rows or of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.optimization.gradients import Gradient, StepGradients
from tests.psserver.optimization.twins import hosting
from tests.psserver.wire import optimizer_program


class Pushed(NamedTuple):
    """What is pushed for one variable; `rows` is None for a dense gradient."""

    variable: str
    value: torch.Tensor
    rows: torch.Tensor | None = None


class Server:
    """Some variables, and an optimizer whose steps may be repeated.

    Attributes:
        repeated: How many were.
    """

    def __init__(
        self,
        case: tuple[type[Any], dict[str, Any]],
        values: Mapping[str, torch.Tensor],
    ) -> None:
        cls, arguments = case
        self.store, self.optimizers = hosting(
            **{name: value.clone() for name, value in values.items()}
        )
        self.program = optimizer_program(cls([torch.zeros(1)], **arguments))
        self.repeated = 0
        self.known: RepeatedStep | None = None
        self.store.watch(self._forget)

    def _forget(self) -> None:
        self.known = None

    def push(self, pushed: Sequence[Pushed]) -> None:
        if not self.repeats(pushed):
            self.check(pushed)

    def repeats(self, pushed: Sequence[Pushed]) -> bool:
        gradients = StepGradients(
            [each.value.clone() for each in pushed], [each.rows for each in pushed]
        )
        if self.known is None or not self.known.begin(self.optimizers, self.program, gradients):
            return False
        self.repeated += 1
        self.known.run()
        self.optimizers.commit(self.known)
        return True

    def check(self, pushed: Sequence[Pushed]) -> None:
        gradients = [Gradient(each.variable, 0, each.value.clone(), each.rows) for each in pushed]
        step = self.optimizers.prepare(self.program, gradients)
        step.run()
        self.optimizers.commit(step)
        self.known = RepeatedStep.from_checked(step, self.store)

    @property
    def contents(self) -> dict[str, tuple[int, bytes]]:
        """Version and bytes of all variables, state included."""
        return {
            each.name: (
                each.version,
                bytes(each.value.flatten().view(torch.uint8).numpy()),
            )
            for each in self.store.variables()
        }
