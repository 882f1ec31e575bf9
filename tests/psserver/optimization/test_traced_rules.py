"""Servers check the traced rules of optimizers before they change a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stratagem._tracing.lifting import Captured
from stratagem._tracing.optimizer_rules import RuleTracer
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, StratagemError
from stratagem_proto.programs.graph_program import MAX_OUTPUT_BYTES
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, TracedResult
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.variables.store import VariableStore
from tests.client.parameter_server.own_optimizers import CountingAdam, Stepping, Trust

SHAPE = (3, 2)


class DividesByCount(Stepping):
    """Fails in the step after the second, once it has written the parameter."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        state["step"] = state.get("step", 3) - 1
        p.sub_(grad)
        p.mul_(1 / state["step"])


def program_of(kind: type[Stepping]) -> OptimizerProgram:
    parameter = torch.zeros(SHAPE)
    optimizer = kind([parameter])
    group = {key: one for key, one in optimizer.param_groups[0].items() if key != "params"}
    rule = RuleTracer(optimizer).rule(Captured(optimizer), group, parameter.shape, parameter.dtype)
    values = encode_values(rule.values_of(group))
    return OptimizerProgram(
        name=kind.__name__, class_name=kind.__name__, groups=[values], rules=[rule.message]
    )


def store_with_weight(is_part: bool = False) -> VariableStore:
    store = VariableStore()
    tensor = spec_of(torch.ones(SHAPE))
    spec = VariableSpec(name="w", tensor=tensor, kind=VARIABLE_KIND_MODEL)
    if is_part:
        spec.partition.full_shape.extend([6, 2])
        spec.partition.offset.extend([0, 0])
    store.create([spec], [torch.ones(SHAPE)])
    return store


def step(store: VariableStore, optimizers: Optimizers, program: OptimizerProgram) -> None:
    checked = optimizers.prepare(program, [Gradient("w", 0, torch.full(SHAPE, 0.5))])
    checked.run()
    optimizers.commit(checked)


def test_a_rule_keeps_its_state_in_slot_variables() -> None:
    store = store_with_weight()
    optimizers, program = Optimizers(store), program_of(CountingAdam)
    for _ in range(3):
        step(store, optimizers, program)
    assert store.get("w/CountingAdam/step").value.item() == 3
    assert store.get("w/CountingAdam/mean").value.shape == SHAPE


def test_a_rule_makes_state_of_any_size() -> None:
    value = torch.ones(MAX_OUTPUT_BYTES // 4 + 1)
    store = VariableStore()
    store.create([VariableSpec(name="w", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)], [value])
    optimizers = Optimizers(store)
    for _ in range(2):
        checked = optimizers.prepare(
            program_of(CountingAdam), [Gradient("w", 0, torch.ones_like(value))]
        )
        checked.run()
        optimizers.commit(checked)
    assert store.get("w/CountingAdam/mean").value.shape == value.shape
    assert store.get("w/CountingAdam/step").value.item() == 2


def test_a_step_that_fails_half_way_changes_nothing() -> None:
    store = store_with_weight()
    optimizers, program = Optimizers(store), program_of(DividesByCount)
    for _ in range(2):
        step(store, optimizers, program)
    before = store.get("w").value.clone()
    with pytest.raises(InvalidArgumentError, match=r"test_traced_rules\.py:\d+: .*division by"):
        step(store, optimizers, program)
    assert torch.equal(store.get("w").value, before)
    assert store.get("w/DividesByCount/step").value.item() == 1


def test_a_rule_that_needs_whole_variables_steps_no_part() -> None:
    store = store_with_weight(is_part=True)
    step(store, Optimizers(store), program_of(CountingAdam))
    with pytest.raises(InvalidArgumentError, match="which is in several parts"):
        step(store, Optimizers(store), program_of(Trust))


def _without_rule(program: OptimizerProgram) -> None:
    del program.rules[:]


def _with_two_rules(program: OptimizerProgram) -> None:
    program.rules.append(program.rules[0])


def _without_meanings(program: OptimizerProgram) -> None:
    del program.rules[0].later.inputs[:]


def _with_state_at_first(program: OptimizerProgram) -> None:
    program.rules[0].first.CopyFrom(program.rules[0].later)


def _with_another_output(program: OptimizerProgram) -> None:
    program.rules[0].later.results[0].output = 99


def _with_state_of_nothing(program: OptimizerProgram) -> None:
    program.rules[0].first.results[0].CopyFrom(TracedResult())


def _with_state_twice(program: OptimizerProgram) -> None:
    program.rules[0].state[1].key = program.rules[0].state[0].key


def _with_state_of_another_shape(program: OptimizerProgram) -> None:
    program.rules[0].state[1].is_scalar = True


def _without_hyperparameter(program: OptimizerProgram) -> None:
    program.groups[0].values.pop("lr")


def _with_unknown_operation(program: OptimizerProgram) -> None:
    program.rules[0].first.graph.nodes[0].operation = "aten.randn.default"


@pytest.mark.parametrize(
    "spoil",
    [
        _without_rule,
        _with_two_rules,
        _without_meanings,
        _with_state_at_first,
        _with_another_output,
        _with_state_of_nothing,
        _with_state_twice,
        _with_state_of_another_shape,
        _without_hyperparameter,
        _with_unknown_operation,
    ],
)
def test_a_rule_that_no_client_traces_is_refused_and_changes_nothing(
    spoil: Callable[[OptimizerProgram], None],
) -> None:
    store, program = store_with_weight(), program_of(CountingAdam)
    spoil(program)
    with pytest.raises((InvalidArgumentError, InvalidTypeError)) as caught:
        step(store, Optimizers(store), program)
    assert isinstance(caught.value, StratagemError)
    assert torch.equal(store.get("w").value, torch.ones(SHAPE))
    assert store.find("w/CountingAdam/mean") is None
