"""A step that is refused has changed nothing, whatever torch had written by then."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_proto.programs.optimizers import OPTIMIZERS, Value, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.optimizers import Undo
from stratagem_psserver.optimization.torch_rules import hyperparameters_of
from tests.psserver.optimization.pushes import Pushed, Server
from tests.psserver.scarce_memory import in_a_child, limited_memory
from tests.psserver.wire import LARGE, RawClient, optimizer_program

pytestmark = pytest.mark.first

VALUES = {"first": torch.ones(4, 2, dtype=torch.float64), "second": torch.ones(4, 2)}
PUSHED = [Pushed(name, torch.full_like(value, 0.1)) for name, value in VALUES.items()]

# More than the type of the second variable has, or what is divided by zero.
REFUSED: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1e39, "momentum": 0.9}),
    "SGD's dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": -1e39}),
    "Adam": (torch.optim.Adam, {"lr": 3e38}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e39}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 1e39}),
    "NAdam": (torch.optim.NAdam, {"lr": 1e39}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e39}),
}
STATES: Mapping[str, tuple[type[torch.optim.Optimizer], str, float]] = {
    "Adam divides by zero": (torch.optim.Adam, "step", -1.0),
    "Adamax takes too large a power": (torch.optim.Adamax, "step", -1e9),
    "RAdam divides by zero": (torch.optim.RAdam, "step", -1.0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hyperparameters_that_fail_half_way_change_nothing(case: str) -> None:
    cls, arguments = REFUSED[case]
    start = {**arguments, "lr": 0.1} if "dampening" not in arguments else {}
    server = Server((cls, start), VALUES)
    for _ in range(3):  # so that steps are repeated
        server.push(PUSHED)
    before = server.contents
    server.program = optimizer_program(cls([torch.zeros(1)], **arguments))
    if "dampening" in arguments:
        # It takes part from the second step with momentum on.
        server.push(PUSHED)
        before = server.contents
    with pytest.raises(InvalidArgumentError, match="changed nothing"):
        server.push(PUSHED)
    assert server.contents == before


@pytest.mark.parametrize("case", STATES)
@pytest.mark.parametrize("variables", [VALUES, {"a": torch.ones(3), "b": torch.ones(5)}])
def test_state_with_which_torch_fails_half_way_changes_nothing(
    case: str, variables: Mapping[str, torch.Tensor]
) -> None:
    cls, key, number = STATES[case]
    pushed = [Pushed(name, torch.ones_like(each)) for name, each in variables.items()]
    server = Server((cls, {}), variables)
    for _ in range(3):
        server.push(pushed)
    last = list(variables)[-1]
    server.store.get(f"{last}/{cls.__name__}/{key}").value.fill_(number)
    before = server.contents
    with pytest.raises(InvalidArgumentError, match="changed nothing"):
        server.push(pushed)
    assert server.contents == before


def test_a_client_hears_that_nothing_was_changed(client: RawClient) -> None:
    client.create(wide=torch.ones(4, dtype=torch.float64), narrow=torch.ones(4))
    gradients = {"wide": torch.ones(4, dtype=torch.float64), "narrow": torch.ones(4)}

    def step(rate: float) -> None:
        sgd = torch.optim.SGD([torch.zeros(1)], lr=rate, momentum=0.9)
        client.update(optimizer_program(sgd), gradients)

    step(0.5)
    before = client.everything()
    with pytest.raises(InvalidArgumentError, match="changed nothing"):
        step(1e39)
    assert client.everything() == before
    step(0.5)


def test_no_strange_hyperparameters_change_anything_before_they_are_refused() -> None:
    draw = random.Random(0)
    refused = sum(_refuses(draw) for _ in range(400))
    assert refused > 100


ODD: tuple[Value, ...] = (True, 0, -1, 2**63 - 1, 1e30, 1e39, -1.0, (0.9,), (), None)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _refuses(draw: random.Random) -> bool:
    """Whether a server refuses some step, as it must without a trace."""
    name = draw.choice(sorted(OPTIMIZERS))
    rule = OPTIMIZERS[name]
    values = {f"v{i}": torch.ones(4, 2, dtype=draw.choice(DTYPES)) for i in range(3)}
    rows = torch.tensor([0, 2])
    pushed = [
        Pushed(name, torch.full_like(value[:2], 0.1), rows)
        if draw.random() < 0.3
        else Pushed(name, torch.full_like(value, 0.1))
        for name, value in values.items()
    ]
    made: Any = rule.cls
    defaults = made([torch.zeros(1)]).param_groups[0]
    plain = {key: defaults[key] for key in hyperparameters_of(rule)}
    server = Server((rule.cls, {}), values)
    for _ in range(3):
        odd = {key: draw.choice(ODD) for key in draw.sample(sorted(plain), 2)}
        group = {**plain, **odd, "capturable": False, "differentiable": False}
        known = {key: group[key] for key in plain}
        groups = [encode_values(values_of(rule, known))]
        server.program = OptimizerProgram(name="o", class_name=name, groups=groups)
        before = server.contents
        try:
            server.push(pushed)
        except StratagemError:
            assert server.contents == before, (name, odd, values)
            return True
    return False


def test_a_step_that_fails_unlooked_for_does_not_say_that_nothing_changed() -> None:
    with pytest.raises(StratagemError, match="in part"), Undo("SGD") as undo:
        undo.begun = True
        raise RuntimeError("can't allocate memory")


@pytest.mark.parametrize("text", ["std::bad_alloc", "can't allocate memory"])
def test_a_step_without_memory_is_told_from_one_that_cannot_be_taken(text: str) -> None:
    with pytest.raises(ResourceExhaustedError, match="no memory for a step"), Undo("A"):
        raise RuntimeError(text)


@pytest.mark.full("the tests above raise what a system without memory raises")
@pytest.mark.parametrize("repeats", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_step_without_memory_changes_nothing(repeats: bool) -> None:
    assert in_a_child(_steps_without_memory, repeats) == "unchanged"


def _steps_without_memory(repeats: bool) -> str:
    torch.set_num_threads(1)
    large = {name: torch.ones(40 * LARGE) for name in ("first", "second")}
    server = Server((torch.optim.Adam, {}), large)
    pushed = [Pushed(name, torch.ones_like(each)) for name, each in large.items()]
    for _ in range(3 if repeats else 0):
        server.push(pushed)
    before = {each.name: each.value.clone() for each in server.store.variables()}
    gradients = [each.value.clone() for each in pushed]
    # Enough for the gradients, and for less than what Adam makes on the way.
    with limited_memory(3 * gradients[0].nbytes):
        try:
            server.push(pushed)
        except ResourceExhaustedError:
            pass
        else:
            return "taken"
    after = {each.name: each.value for each in server.store.variables()}
    same = before.keys() == after.keys()
    same = same and all(torch.equal(before[name], after[name]) for name in after)
    return "unchanged" if same else "changed"
