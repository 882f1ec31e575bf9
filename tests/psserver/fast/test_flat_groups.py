"""Steps of variables that lie together are those of each of them, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from stratagem_proto.programs.optimizers import OPTIMIZERS, rule_named
from stratagem_proto.wire.segment import starts
from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.fast.same_bytes import is_elementwise
from stratagem_psserver.optimization.gradients import Gradient, StepGradients
from tests.psserver.optimization.twins import CASES, STEPS, Twin
from tests.psserver.wire import optimizer_program

# What tells them apart; a step of others is one of each variable.
JOINT = [
    case
    for case, (name, arguments) in CASES.items()
    if name != "RowWiseAdagrad" and not {"fused", "foreach"} & arguments.keys()
]


def laid_out(gradients: Sequence[torch.Tensor]) -> StepGradients:
    """Gradients as they lie in a segment, with whatever was there between them."""
    places, room = starts([each.nbytes for each in gradients])
    flat = torch.full([room // 4], float("nan"))
    each = []
    for gradient, place in zip(gradients, places, strict=True):
        part = flat.narrow(0, place // 4, gradient.numel()).view(gradient.shape)
        each.append(part.copy_(gradient))
    return StepGradients(each, flat=flat)


class Training:
    """Steps of hosted variables, beside those of local ones."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.known: RepeatedStep | None = None

    def step(self, *, without: int = -1, apart: bool = False) -> None:
        """Takes one, of all variables but one."""
        twin, gradients = self.twin, []
        for index, parameter in enumerate(twin.local):
            parameter.grad = None if index == without else torch.randn_like(parameter)
            if parameter.grad is not None:
                group = twin._group_of(parameter)
                value = parameter.grad.clone()
                gradients.append(Gradient(f"v{index}", group, value))
        if without >= 0 or not self._repeated(gradients, apart):
            self._checked(gradients)
        twin.optimizer.step()

    def _repeated(self, gradients: Sequence[Gradient], apart: bool) -> bool:
        known, optimizers = self.known, self.twin.optimizers
        given = laid_out([each.value for each in gradients])
        if apart:
            given = given._replace(flat=None)
        program = optimizer_program(self.twin.optimizer)
        if known is None or not known.begin(optimizers, program, given):
            return False
        known.run()
        optimizers.commit(known)
        return True

    def _checked(self, gradients: Sequence[Gradient]) -> None:
        optimizers = self.twin.optimizers
        program = optimizer_program(self.twin.optimizer)
        step = optimizers.prepare(program, gradients)
        step.run()
        optimizers.commit(step)
        if len(gradients) == len(self.twin.local):
            self.known = RepeatedStep.from_checked(step, self.twin.store)


def trained(case: str) -> Training:
    class_name, arguments = CASES[case]
    cls: Any = OPTIMIZERS[class_name].cls
    return Training(Twin(lambda parameters: cls(parameters, **arguments)))


@pytest.mark.parametrize("case", CASES)
def test_joint_steps_equal_those_of_a_local_optimizer(case: str) -> None:
    training = trained(case)
    for _ in range(STEPS):
        training.step()
    assert training.known is not None
    assert training.known.is_flat is (case in JOINT)
    training.twin.check()


@pytest.mark.parametrize("case", JOINT)
def test_steps_of_some_and_of_each_come_in_between(case: str) -> None:
    training = trained(case)
    for number in range(STEPS):
        # Once a variable has taken fewer steps, all are stepped apart.
        training.step(without=2 if number == STEPS - 3 else -1, apart=number == 4)
    training.twin.check()


def test_groups_have_their_own_hyperparameters_in_each_step() -> None:
    def in_two_groups(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        second: dict[str, Any] = {"params": parameters[3:], "lr": 0.02}
        return torch.optim.AdamW([{"params": parameters[:3]}, second], lr=0.1)

    training = Training(Twin(in_two_groups))
    for number in range(STEPS):
        groups = training.twin.optimizer.param_groups
        groups[number % 2]["lr"] = 0.1 / (number + 1)
        groups[1]["fused"] = number > STEPS - 3
        training.step()
    assert training.known is not None
    assert training.known.is_flat
    training.twin.check()


def test_the_versions_of_all_state_are_those_of_single_steps() -> None:
    training = trained("AdamW")
    for _ in range(STEPS):
        training.step()
    store = training.twin.store
    assert {store.get("v0").version} == {STEPS + 1}
    slots = [store.get(name).version for name in store.slots("v0")]
    assert slots == [STEPS] * len(slots)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ({}, torch.float32, True),
        ({"amsgrad": True}, torch.float64, True),
        ({}, torch.bfloat16, False),
        ({"fused": True}, torch.float32, False),
        ({"foreach": True}, torch.float32, False),
    ],
)
def test_only_what_is_the_same_in_any_tensor_is_joined(
    values: dict[str, Any], dtype: torch.dtype, expected: bool
) -> None:
    found = is_elementwise(rule_named("AdamW"), {"lr": 0.1, **values}, dtype)
    assert found is expected
