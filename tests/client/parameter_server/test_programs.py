"""The programs of steps, which are encoded again when a hyperparameter has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stratagem._core.options import ReduceOp
from stratagem._gradients import Compressor, GroupStep, Limiter, OptimizerStep
from stratagem._parameter_server.hosting.gradients import Programs
from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram


def step_with(name: str = "SGD", class_name: str = "SGD", **values: Any) -> OptimizerStep:
    groups = (GroupStep(values, (), ()),)
    limiter = Limiter(GradientLimits())
    return OptimizerStep(name, class_name, groups, ReduceOp.SUM, 1, Compressor(None), limiter)


def sent(programs: Programs, step: OptimizerStep) -> OptimizerProgram:
    return UpdateHeader.FromString(programs.encoded(step)).program.optimizer


def test_the_same_hyperparameters_are_encoded_once() -> None:
    programs = Programs()
    first = programs.encoded(step_with(lr=0.1))
    programs.encoded(step_with("SGD_1", lr=0.2))
    assert programs.encoded(step_with(lr=0.1)) is first


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(0.1, 0.2, "number"), (1, 1.0, "number"), (1.0, 1, "integer")],
)
def test_other_hyperparameters_are_encoded_again(before: float, after: float, kind: str) -> None:
    programs = Programs()
    programs.encoded(step_with(lr=before))
    lr = sent(programs, step_with(lr=after)).groups[0].values["lr"]
    assert (lr.WhichOneof("kind"), getattr(lr, kind)) == (kind, after)


def test_another_class_under_the_same_name_is_encoded_again() -> None:
    programs = Programs()
    programs.encoded(step_with(lr=0.1))
    program = sent(programs, step_with(class_name="Adagrad", lr=0.1))
    assert program.class_name == "Adagrad"


@pytest.mark.parametrize(
    ("lr", "change"),
    [
        (torch.tensor(0.1), lambda lr: lr.fill_(0.5)),
        ([0.1], lambda lr: lr.__setitem__(0, 0.5)),
    ],
    ids=["a tensor", "a list"],
)
def test_what_is_changed_in_place_is_encoded_again(
    lr: Any, change: Callable[[Any], object]
) -> None:
    programs = Programs()
    before = sent(programs, step_with(lr=lr))
    change(lr)
    assert "0.5" in str(sent(programs, step_with(lr=lr)))
    assert "0.5" not in str(before)


def test_values_in_another_order_are_those_of_their_keys() -> None:
    programs = Programs()
    programs.encoded(step_with(lr=0.1, weight_decay=0.2))
    values = sent(programs, step_with(weight_decay=0.1, lr=0.2)).groups[0].values
    assert (values["lr"].number, values["weight_decay"].number) == (0.2, 0.1)


def test_the_sign_of_zero_travels() -> None:
    programs = Programs()
    programs.encoded(step_with(lr=0.1, weight_decay=0.0))
    program = sent(programs, step_with(lr=0.1, weight_decay=-0.0))
    assert str(program.groups[0].values["weight_decay"].number) == "-0.0"
