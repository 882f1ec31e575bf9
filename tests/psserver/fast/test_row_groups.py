"""Steps of rows that are taken again are those that are checked each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import RowWiseAdagrad, rule_named
from stratagem_psserver.fast import same_bytes
from stratagem_psserver.fast.repeated_steps import RepeatedStep
from stratagem_psserver.fast.row_groups import RowGroup
from stratagem_psserver.fast.same_bytes import sparse_rule
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.variables.store import VariableStore
from tests.full import by_values
from tests.psserver.optimization.pushes import Pushed, Server
from tests.psserver.optimization.twins import hosting
from tests.psserver.wire import optimizer_program

ROWS, STEPS = 700, 6

CASES: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "Adagrad": (
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.2},
    ),
    "row-wise Adagrad": (RowWiseAdagrad, {"lr": 0.1, "weight_decay": 0.05}),
}

# Torch steps them, each time after a check.
OTHERS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD maximize": (torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    "SGD foreach": (torch.optim.SGD, {"lr": 0.1, "foreach": True}),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad weight decay": (torch.optim.Adagrad, {"weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "SparseAdam": (torch.optim.SparseAdam, {"lr": 0.1}),
}


def some_rows(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.randperm(ROWS, generator=generator)[:count].sort().values


@by_values(
    "case,width,dtype",
    [*CASES],
    [(), (1,), (16,), (3, 5)],
    [torch.float32, torch.float64, torch.bfloat16],
)
def test_rows_have_the_bytes_of_checked_steps(
    case: str, width: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(ROWS, *width, generator=generator).to(dtype)
    ours, checked = (Server(CASES[case], {"w": value}) for _ in range(2))
    for count in (5, ROWS, 0, 1, 300, 37):
        gradient = torch.randn(count, *width, generator=generator).to(dtype)
        pushed = [Pushed("w", gradient, some_rows(generator, count))]
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    # torch rounds otherwise where elements are rows themselves.
    is_planned = width and dtype != torch.bfloat16
    assert (ours.repeated >= STEPS - 2) if is_planned else (ours.repeated == 0)


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_dense_gradients_may_come_with_those_of_rows(case: str) -> None:
    generator = torch.Generator().manual_seed(2)
    chosen = {**CASES, **OTHERS}[case]
    values = {
        "table": torch.randn(ROWS, 4, generator=generator),
        "other": torch.randn(ROWS, 8, generator=generator),
    }
    if case != "SparseAdam":
        values["dense"] = torch.randn(30, generator=generator)
    ours, checked = Server(chosen, values), Server(chosen, values)
    for count in range(1, STEPS + 1):
        pushed = [
            Pushed("table", torch.randn(count, 4), some_rows(generator, count)),
            Pushed("other", torch.randn(count, 8), some_rows(generator, count)),
        ]
        if case != "SparseAdam":
            pushed.insert(1, Pushed("dense", torch.randn(30)))
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert (ours.repeated > 0) == (case in CASES)


def test_rates_are_those_of_each_step() -> None:
    ours, checked = (Server(CASES["Adagrad"], {"w": torch.ones(ROWS, 2)}) for _ in range(2))
    for number in range(STEPS):
        for server in (ours, checked):
            group = torch.optim.Adagrad([torch.zeros(1)], lr=0.5 / (number + 1))
            server.program = optimizer_program(group)
        pushed = [Pushed("w", torch.randn(2, 2), torch.tensor([3, 9]))]
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert ours.repeated == STEPS - 2


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (torch.tensor([3, 3]), (2, 2)),
        (torch.tensor([4, 3]), (2, 2)),
        (torch.tensor([3, ROWS]), (2, 2)),
        (torch.tensor([-1, 3]), (2, 2)),
        (torch.tensor([3, 4], dtype=torch.int32), (2, 2)),
        (torch.tensor([[3, 4]]), (1, 2)),
        (torch.tensor([3, 4]), (3, 2)),
        (torch.tensor([3, 4]), (2, 1)),
        (None, (ROWS, 2)),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_other_rows_are_checked(
    case: str, rows: torch.Tensor | None, shape: tuple[int, ...]
) -> None:
    server = Server(CASES[case], {"w": torch.ones(ROWS, 2)})
    known = Pushed("w", torch.ones(2, 2), torch.tensor([3, 9]))
    for _ in range(2):
        server.push([known])
    before = server.contents
    assert not server.repeats([Pushed("w", torch.ones(shape), rows)])
    assert not server.repeats([known._replace(value=torch.ones(2, 2).double())])
    assert server.contents == before
    assert server.repeats([known])


def test_torch_steps_where_a_rule_comes_to_other_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rounded(values: Any, rows: torch.Tensor, gradient: torch.Tensor, _: Any) -> None:
        rows.sub_(gradient * values["lr"])

    rule = rule_named("SGD")
    group = torch.optim.SGD([torch.zeros(1)]).param_groups[0]
    values = {key: group[key] for key in rule.hyperparameters & group.keys()}
    monkeypatch.setitem(same_bytes._RULES, torch.optim.SGD, rounded)
    same_bytes._is_same.cache_clear()
    try:
        assert sparse_rule(rule, values, torch.float32) is None
    finally:
        same_bytes._is_same.cache_clear()


def test_rows_are_not_stepped_by_parts_of_a_variable() -> None:
    """A value whose rows are not one behind the other stays with torch."""
    store, optimizers = hosting(w=torch.ones(4, ROWS).t())
    step = _stepped(store, optimizers)
    assert step is None


def _stepped(store: VariableStore, optimizers: Optimizers) -> RepeatedStep | None:
    program = optimizer_program(torch.optim.SGD([torch.zeros(1)]))
    gradient = Gradient("w", 0, torch.ones(1, 4), torch.tensor([3]))
    step = optimizers.prepare(program, [gradient])
    step.run()
    optimizers.commit(step)
    return RepeatedStep.from_checked(step, store)


def test_rows_of_a_variable_are_one_group() -> None:
    store, optimizers = hosting(w=torch.ones(ROWS, 4))
    step = _stepped(store, optimizers)
    assert step is not None
    assert [type(group) for group in step._groups] == [RowGroup]


# Row-wise Adagrad divides the rate by a tensor, which overflows to infinity, as it does locally.
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"row-wise Adagrad"}))
def test_a_step_that_fails_for_one_variable_changes_none(case: str) -> None:
    values = {
        "first": torch.ones(ROWS, 4, dtype=torch.float64),
        "second": torch.ones(ROWS, 4),
    }
    server = Server(CASES[case], values)
    rows = torch.arange(50)
    pushed = [
        Pushed(name, torch.ones(50, 4, dtype=each.dtype), rows) for name, each in values.items()
    ]
    server.push(pushed)
    server.push(pushed)  # now all state is there
    before = server.contents
    cls, arguments = CASES[case]
    # More than a float32 can be.
    too_fast = cls([torch.zeros(1)], **{**arguments, "lr": 1e300})
    server.program = optimizer_program(too_fast)
    with pytest.raises(InvalidArgumentError, match="overflow"):
        server.push(pushed)
    assert server.contents == before
