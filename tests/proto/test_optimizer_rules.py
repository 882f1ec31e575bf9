"""The optimizers on the allow-list, and their hyperparameters on the wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.programs.optimizers import OPTIMIZERS, TypedNumber, rule_named, values_of
from stratagem_proto.programs.update_programs import decode_group, encode_values
from stratagem_proto.v1.tensor_pb2 import (
    DATA_TYPE_COMPLEX64,
    DATA_TYPE_FLOAT32,
    DATA_TYPE_FLOAT64,
    DATA_TYPE_INT8,
    DATA_TYPE_INT64,
)
from stratagem_proto.v1.update_program_pb2 import Hyperparameter, HyperparameterGroup
from stratagem_proto.v1.update_program_pb2 import TypedNumber as TypedMessage


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_torch_keeps_in_a_param_group_travels(name: str) -> None:
    rule = rule_named(name)
    optimizer: Any = rule.cls
    group = optimizer([torch.zeros(1)]).param_groups[0]
    decoded = decode_group(rule, encode_values(values_of(rule, group)))
    assert decoded == {key: group[key] for key in group if key != "params"}


def test_what_a_scheduler_adds_stays_behind() -> None:
    rule = rule_named("SGD")
    group = {"lr": torch.tensor(0.5), "initial_lr": 1.0}
    rate = TypedNumber(0.5, torch.float32, is_tensor=True)
    assert decode_group(rule, encode_values(values_of(rule, group))) == {"lr": rate}


def test_an_optimizer_outside_the_list_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="'LBFGS'; they run SGD, Adam"):
        rule_named("LBFGS")


def test_an_unknown_hyperparameter_is_refused() -> None:
    group = HyperparameterGroup(values={"lamda": Hyperparameter(number=1.0)})
    with pytest.raises(InvalidArgumentError, match="SGD has no hyperparameter 'lamda'"):
        decode_group(rule_named("SGD"), group)


def test_a_flag_that_servers_cannot_honour_is_refused() -> None:
    rule = rule_named("Adam")
    with pytest.raises(InvalidArgumentError, match="leave capturable out"):
        decode_group(rule, encode_values(values_of(rule, {"capturable": True})))


def test_a_value_without_a_form_on_the_wire_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="'lr' is a str"):
        encode_values(values_of(rule_named("SGD"), {"lr": "fast"}))


@pytest.mark.parametrize(
    "typed",
    [
        {"number": 0.1, "dtype": DATA_TYPE_FLOAT32},
        {"number": 1e300, "dtype": DATA_TYPE_FLOAT32},
        {"number": 1.5, "dtype": DATA_TYPE_INT64, "is_tensor": True},
        {"number": float("nan"), "dtype": DATA_TYPE_INT64, "is_tensor": True},
        {"number": 300.0, "dtype": DATA_TYPE_INT8, "is_tensor": True},
        {"number": 0.5, "dtype": DATA_TYPE_FLOAT64},
        {"number": 0.5, "dtype": DATA_TYPE_COMPLEX64, "is_tensor": True},
        {"number": 0.5},
    ],
)
def test_a_number_that_its_type_does_not_hold_is_refused(typed: dict[str, Any]) -> None:
    group = HyperparameterGroup(values={"lr": Hyperparameter(typed=TypedMessage(**typed))})
    with pytest.raises(InvalidArgumentError):
        decode_group(rule_named("SGD"), group)
