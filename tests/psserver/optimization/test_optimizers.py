"""Steps of hosted variables against a local `torch.optim`, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
)
from stratagem_proto.programs.optimizers import OPTIMIZERS
from stratagem_proto.v1.update_program_pb2 import Hyperparameter, OptimizerProgram
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import MAX_OPTIMIZERS, Optimizers
from stratagem_psserver.optimization.torch_rules import NUMBERS, dry_run, make_optimizer, take_step
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.optimization.twins import CASES, STEPS, Twin, hosting, run
from tests.psserver.wire import model_spec, optimizer_program, sgd, slot_spec


@pytest.mark.parametrize("case", CASES)
def test_steps_equal_those_of_a_local_optimizer(case: str) -> None:
    class_name, arguments = CASES[case]
    cls: Any = OPTIMIZERS[class_name].cls
    twin = Twin(lambda parameters: cls(parameters, **arguments))
    for _ in range(STEPS):
        twin.step()
    twin.check()


def in_two_groups(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    second: dict[str, Any] = {"params": parameters[3:], "lr": 0.02, "weight_decay": 0.3}
    return torch.optim.AdamW([{"params": parameters[:3]}, second])


def test_groups_schedulers_and_skipped_parameters_equal_local_ones() -> None:
    twin = Twin(in_two_groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(twin.optimizer, 0.1, STEPS + 1)
    for number in range(STEPS):
        twin.step(without=number % 4)
        schedule.step()
    twin.check()


def test_momentum_that_is_switched_on_later_starts_then() -> None:
    twin = Twin(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    twin.step()
    twin.check()
    twin.optimizer.param_groups[0]["momentum"] = 0.9
    twin.step()
    twin.step()
    twin.check()


def test_state_restored_before_the_first_step_is_used() -> None:
    trained = Twin(lambda parameters: torch.optim.NAdam(parameters))
    for _ in range(3):
        trained.step()
    infos = trained.store.listing()
    fresh = VariableStore()
    fresh.create(
        [info.spec for info in infos],
        [trained.store.get(info.spec.name).value.clone() for info in infos],
    )
    trained.store, trained.optimizers = fresh, Optimizers(fresh)
    trained.step()
    trained.check()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_in_the_state_of_an_optimizer_have_a_bound(name: str) -> None:
    """A step with a number beyond it could fail half-way, with some variables written."""
    group = make_optimizer(OPTIMIZERS[name], {}, []).param_groups[0]
    values = {key: group[key] for key in group if key != "params"}
    layout = dry_run(OPTIMIZERS[name], values, torch.float32, name == "SparseAdam").layout
    numbers = {key for key, state in layout.items() if state.is_scalar}
    missing = numbers - NUMBERS.keys()
    assert not missing, f"add {missing} to NUMBERS in torch_rules.py"


@pytest.fixture
def double_default() -> Iterator[None]:
    """A program that hosts a server in itself and computes in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("cls", [torch.optim.NAdam, torch.optim.ASGD])
def test_state_does_not_depend_on_the_default_dtype(
    cls: type[torch.optim.Optimizer], double_default: None
) -> None:
    store, optimizers = hosting(w=torch.zeros(2))
    program = optimizer_program(cls([torch.empty(0)]))  # type: ignore[call-arg]
    scalars = set()
    for default in (torch.float64, torch.float32):
        torch.set_default_dtype(default)
        run(optimizers, program, [Gradient("w", 0, store.get("w").value.clone())])
        scalars |= {
            store.get(info.spec.name).value.dtype
            for info in store.listing()
            if not info.spec.tensor.shape
        }
    assert scalars == {torch.float32}


def test_a_step_raises_the_versions_of_variables_and_slots() -> None:
    store, optimizers = hosting(w=torch.zeros(2), other=torch.zeros(2))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    for expected in (2, 3):
        assert run(optimizers, adam, [Gradient("w", 0, torch.ones(2))]) == [expected]
    versions = {info.spec.name: info.version for info in store.listing()}
    assert versions["other"] == 1
    assert versions["w/Adam/exp_avg"] == 2


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("rows", [[3, 1, 3], []])
def test_row_sparse_gradients_step_as_those_of_a_sparse_embedding(
    cls: Callable[..., torch.optim.Optimizer], rows: list[int]
) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(5, 2, sparse=True)
    store, optimizers = hosting(table=table.weight.detach())
    local = cls(table.parameters(), lr=0.1)
    for _ in range(3):
        local.zero_grad()
        table(torch.tensor(rows, dtype=torch.int64)).pow(2).sum().backward()
        sparse = table.weight.grad
        assert sparse is not None
        gradient = Gradient("table", 0, sparse._values().clone(), sparse._indices()[0].clone())
        run(optimizers, optimizer_program(local), [gradient])
        take_step(local, sparse=True)
    assert torch.equal(store.get("table").value, table.weight)


@pytest.mark.parametrize("name", [n for n, rule in OPTIMIZERS.items() if not rule.steps_rows])
def test_optimizers_that_step_no_rows_say_which_do(name: str) -> None:
    store, optimizers = hosting(table=torch.ones(5, 2))
    gradient = Gradient("table", 0, torch.ones(1, 2), torch.tensor([3]))
    cls: Any = OPTIMIZERS[name].cls
    program = optimizer_program(cls([torch.empty(0)]))
    with pytest.raises(InvalidArgumentError, match="work with Adagrad, Adam, AdamW"):
        optimizers.prepare(program, [gradient])
    assert torch.equal(store.get("table").value, torch.ones(5, 2))


def without_momentum() -> OptimizerProgram:
    program = sgd()
    del program.groups[0].values["momentum"]
    return program


def altered(key: str, value: Hyperparameter) -> OptimizerProgram:
    program = sgd()
    program.groups[0].values[key].CopyFrom(value)
    return program


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (OptimizerProgram(name="o", class_name="LBFGS"), "they run SGD"),
        (OptimizerProgram(name="", class_name="SGD"), "optimizer name"),
        (OptimizerProgram(name="o", class_name="SGD"), "param group 0"),
        (without_momentum(), "momentum"),
        (altered("lr", Hyperparameter()), "lr=None"),
        (altered("lr", Hyperparameter(number=-1.0)), "lr=-1.0"),
        (altered("lr", Hyperparameter(number=float("nan"))), "lr=nan"),
        (altered("momentum", Hyperparameter(number=-1.0)), "momentum"),
        (altered("momentum", Hyperparameter()), "SGD"),
        (altered("nesterov", Hyperparameter(flag=True)), "(?i)nesterov"),
        (altered("betas", Hyperparameter(number=1.0)), "betas"),
        (altered("differentiable", Hyperparameter(flag=True)), "differentiable"),
    ],
)
def test_a_program_that_cannot_step_is_refused_before_anything_changes(
    program: OptimizerProgram, says: str
) -> None:
    store, optimizers = hosting(w=torch.ones(2))
    with pytest.raises(InvalidArgumentError, match=says):
        optimizers.prepare(program, [Gradient("w", 0, torch.ones(2))])
    assert torch.equal(store.get("w").value, torch.ones(2))
    assert store.slots("w") == []


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD([torch.empty(0)], lr=0.1),
        torch.optim.Adam([torch.empty(0)], fused=True),
    ],
)
def test_integers_cannot_be_stepped(optimizer: torch.optim.Optimizer) -> None:
    _, optimizers = hosting(w=torch.ones(2, dtype=torch.int64))
    gradient = Gradient("w", 0, torch.ones(2, dtype=torch.int64))
    with pytest.raises(InvalidArgumentError, match=r"torch\.int64"):
        optimizers.prepare(optimizer_program(optimizer), [gradient])


def test_a_name_stays_with_its_class() -> None:
    _, optimizers = hosting(w=torch.ones(2))
    gradient = Gradient("w", 0, torch.ones(2))
    run(optimizers, sgd(), [gradient])
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]), name="SGD")
    with pytest.raises(AlreadyExistsError, match="another name"):
        optimizers.prepare(adam, [gradient])


def test_a_name_is_free_again_once_nothing_is_left_of_its_optimizer() -> None:
    store, optimizers = hosting(w=torch.ones(2), other=torch.ones(2))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]), name="SGD")
    for name in ("w", "other"):
        run(optimizers, sgd(), [Gradient(name, 0, torch.ones(2))])
    optimizers.forget(store.delete(["w"]))
    gradient = Gradient("other", 0, torch.ones(2))
    with pytest.raises(AlreadyExistsError):
        optimizers.prepare(adam, [gradient])
    optimizers.forget(store.delete(["other"]))
    store.create([model_spec("w", torch.ones(2))], [torch.ones(2)])
    # The versions of the one before do not come again.
    assert run(optimizers, adam, [Gradient("w", 0, torch.ones(2))]) == [4]


def test_only_so_many_optimizers_are_known() -> None:
    _, optimizers = hosting(w=torch.ones(2))
    program, gradient = sgd(), Gradient("w", 0, torch.zeros(2))
    for number in range(MAX_OPTIMIZERS):
        program.name = f"SGD{number}"
        run(optimizers, program, [gradient])
    program.name = "SGD"
    with pytest.raises(FailedPreconditionError, match="the same name in each step"):
        optimizers.prepare(program, [gradient])


def adam_steps(value: torch.Tensor, steps: int) -> torch.Tensor:
    """What Adam makes of a value by gradients of ones."""
    parameter = torch.nn.Parameter(value.clone())
    adam = torch.optim.Adam([parameter])
    for _ in range(steps):
        parameter.grad = torch.ones_like(value)
        adam.step()
    return parameter.detach()


def test_what_was_found_of_a_variable_is_not_used_for_its_successor() -> None:
    store, optimizers = hosting(w=torch.ones(2))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    for _ in range(3):
        run(optimizers, adam, [Gradient("w", 0, torch.ones(2))])
    optimizers.forget(store.delete(["w"]))
    store.create([model_spec("w", torch.zeros(3))], [torch.zeros(3)])
    for _ in range(2):
        run(optimizers, adam, [Gradient("w", 0, torch.ones(3))])
    assert torch.equal(store.get("w").value, adam_steps(torch.zeros(3), 2))


def test_state_that_was_replaced_is_looked_at_again() -> None:
    store, optimizers = hosting(w=torch.ones(2))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    for _ in range(2):
        run(optimizers, adam, [Gradient("w", 0, torch.ones(2))])
    store.put_slot("w/Adam/exp_avg", "w", torch.zeros(3))
    with pytest.raises(FailedPreconditionError, match="shape"):
        optimizers.prepare(adam, [Gradient("w", 0, torch.ones(2))])
    store.delete(["w/Adam/exp_avg"])
    with pytest.raises(FailedPreconditionError, match="exp_avg"):
        optimizers.prepare(adam, [Gradient("w", 0, torch.ones(2))])
    store.delete(["w/Adam/exp_avg_sq", "w/Adam/step"])
    store.put_value("w", torch.ones(2))
    run(optimizers, adam, [Gradient("w", 0, torch.ones(2))])
    assert torch.equal(store.get("w").value, adam_steps(torch.ones(2), 1))


def test_slots_are_not_stepped_themselves() -> None:
    store, optimizers = hosting(w=torch.ones(2))
    store.create([slot_spec("w/m", "w", torch.ones(2))], [torch.ones(2)])
    with pytest.raises(InvalidArgumentError, match="slot of 'w'"):
        optimizers.prepare(sgd(), [Gradient("w/m", 0, torch.ones(2))])


@pytest.mark.parametrize(
    ("slots", "error"),
    [
        ({"w/Adam/exp_avg": torch.ones(2)}, FailedPreconditionError),
        ({"w/Adam/exp_avg": torch.ones(3)}, FailedPreconditionError),
        ({"w/Adam/step": torch.tensor(1)}, FailedPreconditionError),
    ],
)
def test_state_that_does_not_fit_is_refused(
    slots: Mapping[str, torch.Tensor], error: type[StratagemError]
) -> None:
    store, optimizers = hosting(w=torch.ones(2))
    specs = [slot_spec(name, "w", value) for name, value in slots.items()]
    store.create(specs, list(slots.values()))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    with pytest.raises(error):
        optimizers.prepare(adam, [Gradient("w", 0, torch.ones(2))])


def test_a_variable_in_the_place_of_state_is_refused() -> None:
    store, optimizers = hosting(w=torch.ones(2))
    value = torch.ones(2)
    store.create([model_spec("w/Adam/exp_avg", value)], [value])
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    with pytest.raises(AlreadyExistsError, match="rename"):
        optimizers.prepare(adam, [Gradient("w", 0, torch.ones(2))])
