"""The programs of steps, which are encoded again when a hyperparameter has changed."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem._enums import ReduceOp
from stratagem._optimizers.compressor import Compressor
from stratagem._optimizers.limiter import Limiter
from stratagem._optimizers.step import GroupStep, OptimizerStep
from stratagem._parameter_server.hosting.programs import Programs
from stratagem_proto.gradient_limits import GradientLimits


def step_with(
    name: str = "SGD", class_name: str = "SGD", **values: Any
) -> OptimizerStep:
    groups = (GroupStep(values, ()),)
    limiter = Limiter(GradientLimits())
    return OptimizerStep(
        name, class_name, groups, ReduceOp.SUM, 1, Compressor(None), limiter
    )


def test_the_same_hyperparameters_are_encoded_once() -> None:
    programs = Programs()
    first = programs.of(step_with(lr=0.1))
    programs.of(step_with("SGD_1", lr=0.2))
    assert programs.of(step_with(lr=0.1)) is first


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(0.1, 0.2, "number"), (1, 1.0, "number"), (1.0, 1, "integer")],
)
def test_other_hyperparameters_are_encoded_again(
    before: float, after: float, kind: str
) -> None:
    programs = Programs()
    programs.of(step_with(lr=before))
    lr = programs.of(step_with(lr=after)).groups[0].values["lr"]
    assert (lr.WhichOneof("kind"), getattr(lr, kind)) == (kind, after)


def test_another_class_under_the_same_name_is_encoded_again() -> None:
    programs = Programs()
    programs.of(step_with(lr=0.1))
    program = programs.of(step_with(class_name="Adagrad", lr=0.1))
    assert program.class_name == "Adagrad"


def test_the_sign_of_zero_travels() -> None:
    programs = Programs()
    programs.of(step_with(lr=0.1, weight_decay=0.0))
    program = programs.of(step_with(lr=0.1, weight_decay=-0.0))
    assert str(program.groups[0].values["weight_decay"].number) == "-0.0"
