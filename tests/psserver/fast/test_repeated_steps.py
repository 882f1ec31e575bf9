"""Steps that are taken again without a check are those that are checked each time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from stratagem_proto.errors import AlreadyExistsError, InvalidArgumentError
from stratagem_proto.programs.optimizers import OPTIMIZERS
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.optimization.gradients import Gradient, StepGradients
from stratagem_psserver.optimization.optimizers import Optimizers
from tests.psserver.optimization.twins import CASES, STEPS, Twin, hosting
from tests.psserver.wire import optimizer_program, sgd


class Repeating:
    """Steps of one optimizer, repeated while that is possible."""

    def __init__(self, twin: Twin) -> None:
        self.optimizers = twin.optimizers
        self.known: RepeatedStep | None = None
        self.repeated = 0
        twin.store.watch(self.forget)

    def forget(self) -> None:
        self.known = None

    def step(self, program: OptimizerProgram, gradients: Sequence[Gradient]) -> None:
        values = StepGradients([each.value for each in gradients])
        known = self.known
        if known is not None and known.begin(self.optimizers, program, values):
            self.repeated += 1
            known.run()
            self.optimizers.commit(known)
        else:
            self.known = checked(self.optimizers, program, gradients)


def checked(
    optimizers: Optimizers, program: OptimizerProgram, gradients: Sequence[Gradient]
) -> RepeatedStep | None:
    """Takes a step after checking it; returns what may be repeated."""
    step = optimizers.prepare(program, gradients)
    step.run()
    optimizers.commit(step)
    return RepeatedStep.from_checked(step, optimizers._store)


def stepped(twin: Twin, repeating: Repeating) -> None:
    gradients = []
    for index, parameter in enumerate(twin.local):
        parameter.grad = torch.randn_like(parameter)
        group = int(len(twin.optimizer.param_groups) > 1 and index > 2)
        gradients.append(Gradient(f"v{index}", group, parameter.grad.clone()))
    repeating.step(optimizer_program(twin.optimizer), gradients)
    twin.optimizer.step()


@pytest.mark.parametrize("case", CASES)
def test_repeated_steps_equal_those_of_a_local_optimizer(case: str) -> None:
    class_name, arguments = CASES[case]
    cls: Any = OPTIMIZERS[class_name].cls
    twin = Twin(lambda parameters: cls(parameters, **arguments))
    repeating = Repeating(twin)
    for _ in range(STEPS):
        stepped(twin, repeating)
    assert repeating.repeated >= STEPS - 2
    twin.check()


def test_hyperparameters_are_those_of_each_step() -> None:
    def in_two_groups(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        second: dict[str, Any] = {"params": parameters[3:], "lr": 0.02}
        return torch.optim.AdamW([{"params": parameters[:3]}, second], lr=0.1)

    twin = Twin(in_two_groups)
    repeating = Repeating(twin)
    for number in range(STEPS):
        twin.optimizer.param_groups[number % 2]["lr"] = 0.1 / (number + 1)
        stepped(twin, repeating)
    assert repeating.repeated == STEPS - 2
    twin.check()


def ready(optimizer: torch.optim.Optimizer) -> tuple[Optimizers, RepeatedStep]:
    """A variable "w" of two elements that an optimizer has stepped."""
    _, optimizers = hosting(w=torch.zeros(2))
    program, gradients = optimizer_program(optimizer), [Gradient("w", 0, torch.ones(2))]
    checked(optimizers, program, gradients)
    known = checked(optimizers, program, gradients)
    assert known is not None
    return optimizers, known


def test_a_step_with_another_state_is_not_repeated() -> None:
    parameters = [torch.zeros(2)]
    optimizers, known = ready(torch.optim.Adam(parameters))
    other = optimizer_program(torch.optim.Adam(parameters, amsgrad=True))
    assert not known.begin(optimizers, other, StepGradients([torch.ones(2)]))


def test_a_step_with_another_number_of_groups_is_not_repeated() -> None:
    parameters = [torch.zeros(2)]
    optimizers, known = ready(torch.optim.Adam(parameters))
    other = optimizer_program(torch.optim.Adam(parameters))
    other.groups.append(other.groups[0])
    assert not known.begin(optimizers, other, StepGradients([torch.ones(2)]))


def test_groups_without_a_gradient_are_not_looked_at() -> None:
    _, optimizers = hosting(w=torch.zeros(2))
    program, gradients = sgd(), [Gradient("w", 0, torch.ones(2))]
    program.groups.append(program.groups[0])
    program.groups[1].values["lr"].number = -1.0
    known = checked(optimizers, program, gradients)
    assert known is not None
    assert known.begin(optimizers, program, StepGradients([torch.ones(2)]))


def test_hyperparameters_that_cannot_be_are_refused() -> None:
    optimizers, known = ready(torch.optim.SGD([torch.zeros(2)], momentum=0.9))
    program = sgd()
    program.groups[0].values["lr"].number = -1.0
    with pytest.raises(InvalidArgumentError, match="lr=-1"):
        known.begin(optimizers, program, StepGradients([torch.ones(2)]))


def test_an_optimizer_of_another_class_is_refused() -> None:
    optimizers, known = ready(torch.optim.Adam([torch.zeros(2)]))
    program = optimizer_program(torch.optim.AdamW([torch.zeros(2)]), name="Adam")
    with pytest.raises(AlreadyExistsError, match="cannot become a AdamW"):
        known.begin(optimizers, program, StepGradients([torch.ones(2)]))


def test_a_step_that_begins_its_state_or_has_rows_cannot_be_repeated() -> None:
    _, optimizers = hosting(w=torch.zeros(2), table=torch.zeros(3, 2))
    adam = optimizer_program(torch.optim.Adam([torch.zeros(2)]))
    assert checked(optimizers, adam, [Gradient("w", 0, torch.ones(2))]) is None
    rows = Gradient("table", 0, torch.ones(1, 2), torch.tensor([1]))
    for _ in range(2):
        assert checked(optimizers, adam, [rows]) is None


def test_nothing_is_left_of_the_gradients() -> None:
    optimizers, known = ready(torch.optim.Adam([torch.zeros(2)]))
    adam, gradient = (
        optimizer_program(torch.optim.Adam([torch.zeros(2)])),
        torch.ones(2),
    )
    assert known.begin(optimizers, adam, StepGradients([gradient]))
    known.run()
    optimizers.commit(known)
    assert known.variables[0].value.grad is None
    left = weakref.ref(gradient)
    del gradient
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("lr", [-1.0, float("nan")])
def test_nothing_is_left_of_the_gradients_of_a_step_that_is_refused(lr: float) -> None:
    optimizers, known = ready(torch.optim.Adam([torch.zeros(2)]))
    refused = optimizer_program(torch.optim.Adam([torch.zeros(2)]))
    refused.groups[0].values["lr"].number = lr
    gradient = torch.ones(2)
    with pytest.raises(InvalidArgumentError):
        known.begin(optimizers, refused, StepGradients([gradient]))
    left = weakref.ref(gradient)
    del gradient
    gc.collect()
    assert left() is None
