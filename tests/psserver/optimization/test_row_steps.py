"""Row-sparse gradients: the same steps as torch takes, in any number of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.programs.optimizers import OPTIMIZERS, RowWiseAdagrad
from stratagem_proto.programs.random_rows import InitialValues
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.optimization.torch_rules import take_step
from stratagem_psserver.variables.store import VariableStore
from tests.full import by_values
from tests.psserver.tables.specs import (
    ZEROS,
    dynamic,
    hosting,
    made,
    parts,
    table_of,
    table_spec,
)
from tests.psserver.wire import optimizer_program

ROWS, COLUMNS = 29, 3
SPEC = table_spec("users", (ROWS, COLUMNS))

Make = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]

# Those that torch itself has row-sparse steps of.
SPARSE: Mapping[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD maximize": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.1, lr_decay=0.05, initial_accumulator_value=0.2
    ),
    "Adagrad foreach": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=True),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95)),
    "SparseAdam maximize": lambda p: torch.optim.SparseAdam(p, maximize=True),
    "row-wise Adagrad": lambda p: RowWiseAdagrad(p, lr=0.1),
    "row-wise Adagrad weight decay": lambda p: RowWiseAdagrad(
        p, lr=0.1, weight_decay=0.2, maximize=True
    ),
}

# Those that step rows by what torch does to a dense parameter.
LAZY: Mapping[str, Make] = {
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "SGD weight decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "Adagrad weight decay": lambda p: torch.optim.Adagrad(
        p, lr=0.1, weight_decay=0.1, lr_decay=0.1, initial_accumulator_value=0.2
    ),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "RMSprop centered": lambda p: torch.optim.RMSprop(
        p, lr=0.1, momentum=0.9, centered=True, weight_decay=0.1
    ),
}


def test_every_optimizer_that_steps_rows_is_compared_here() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, 1))
    tried = {type(make([parameter])).__name__ for make in (*SPARSE.values(), *LAZY.values())}
    able = {name for name, rule in OPTIMIZERS.items() if rule.steps_rows}
    assert tried == able, f"SPARSE and LAZY lack {able - tried}, and have {tried - able}"


def batches(number: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows with repetitions and their gradients; the last but one has none."""
    generator = torch.Generator().manual_seed(3)
    sizes = [7, 20, 1, 40, 0, 9][:number]
    return [
        (
            torch.randint(0, ROWS, (size,), generator=generator),
            torch.randn(size, COLUMNS, generator=generator),
        )
        for size in sizes
    ]


def push(
    optimizers: Optimizers,
    program: OptimizerProgram,
    specs: Sequence[VariableSpec],
    rows: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """A row-sparse gradient of the whole, as it reaches every part."""
    for spec in specs:
        first = spec.partition.offset[0] if spec.partition.offset else 0
        mine = (rows >= first) & (rows < first + spec.tensor.shape[0])
        gradient = Gradient(spec.name, 0, values[mine], rows[mine] - first)
        step = optimizers.prepare(program, [gradient])
        step.run()
        optimizers.commit(step)


def whole(store: VariableStore, specs: Sequence[VariableSpec], key: str) -> Any:
    """The value (key "") or a state tensor of all parts together."""
    found = [store.get(spec.name + key) for spec in specs]
    if not found[0].spec.tensor.shape:
        assert len({float(each.value) for each in found}) == 1
        return found[0].value
    sizes = [spec.tensor.shape[0] for spec in specs]
    return torch.cat([each.rows(torch.arange(n)) for each, n in zip(found, sizes, strict=True)])


def divided(number: int, as_tables: bool) -> list[VariableSpec]:
    specs = parts(SPEC, number) if number > 1 else [SPEC]
    return specs if as_tables else [made(spec) for spec in specs]


@by_values("case,number,as_tables", [*SPARSE], [1, 2, 3, 7], [False, True])
def test_rows_have_the_bytes_of_sparse_training_in_torch(
    case: str, number: int, as_tables: bool
) -> None:
    parameter = torch.nn.Parameter(InitialValues(SPEC).whole())
    local = SPARSE[case]([parameter])
    specs = divided(number, as_tables)
    store, optimizers = hosting(*specs)
    for rows, values in batches():
        parameter.grad = torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, (ROWS, COLUMNS), check_invariants=False
        )
        take_step(local, sparse=True)
        if not isinstance(local, torch.optim.SGD):
            # The order in which torch adds up repeated rows depends on all of them.
            rows, values = combined(parameter.grad)
        push(optimizers, optimizer_program(local), specs, rows, values)
        assert torch.equal(whole(store, specs, ""), parameter)
    name = type(local).__name__
    state = local.state[parameter]
    for key in state:
        mine = whole(store, specs, f"/{name}/{key}")
        assert torch.equal(mine, torch.as_tensor(state[key])), key


def combined(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole_gradient = gradient.coalesce()
    return whole_gradient.indices()[0], whole_gradient.values()


@by_values(
    "case,shape,dtype",
    [*SPARSE],
    [(), (1,), (2,), (16,), (17,), (100,), (3, 5)],
    [torch.float32, torch.float64, torch.bfloat16],
)
def test_rows_of_any_shape_have_the_bytes_of_sparse_training_in_torch(
    case: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    value = torch.randn(ROWS, *shape, generator=generator).to(dtype)
    parameter = torch.nn.Parameter(value.clone())
    local = SPARSE[case]([parameter])
    spec = VariableSpec(name="users", tensor=spec_of(value), kind=SPEC.kind)
    store = VariableStore()
    store.create([spec], [value])
    optimizers = Optimizers(store)
    for size in (1, 8, ROWS):
        rows = torch.randperm(ROWS, generator=generator)[:size].sort().values
        values = torch.randn(size, *shape, generator=generator).to(dtype)
        parameter.grad = torch.sparse_coo_tensor(
            rows.unsqueeze(0),
            values,
            value.shape,
            check_invariants=False,
            is_coalesced=True,
        )
        take_step(local, sparse=True)
        push(optimizers, optimizer_program(local), [spec], rows, values)
        assert torch.equal(store.get("users").value, parameter)


@pytest.mark.parametrize("case", SPARSE)
@pytest.mark.parametrize("as_tables", [False, True], ids=["variable", "table"])
def test_repeated_rows_are_added_up_as_torch_does(case: str, as_tables: bool) -> None:
    parameter = torch.nn.Parameter(InitialValues(SPEC).whole())
    local = SPARSE[case]([parameter])
    specs = divided(1, as_tables)
    store, optimizers = hosting(*specs)
    for rows, values in batches():
        parameter.grad = torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, (ROWS, COLUMNS), check_invariants=False
        )
        take_step(local, sparse=True)
        push(optimizers, optimizer_program(local), specs, rows, values)
    assert torch.equal(whole(store, specs, ""), parameter)


@by_values("case,number,as_tables", [*LAZY], [1, 3], [False, True])
def test_other_optimizers_step_the_rows_and_leave_the_rest(
    case: str, number: int, as_tables: bool
) -> None:
    """A dense step of all rows, after which those without a gradient are put back."""
    parameter = torch.nn.Parameter(InitialValues(SPEC).whole())
    local = LAZY[case]([parameter])
    specs = divided(number, as_tables)
    store, optimizers = hosting(*specs)
    for rows, values in batches():
        untouched = torch.ones(ROWS, dtype=torch.bool)
        untouched[rows] = False
        parameter.grad = torch.zeros(ROWS, COLUMNS).index_add_(0, rows, values)
        step_and_put_back(local, parameter, untouched)
        push(optimizers, optimizer_program(local), specs, rows, values)
        assert torch.equal(whole(store, specs, ""), parameter)
    name = type(local).__name__
    for key, tensor in local.state[parameter].items():
        assert torch.equal(whole(store, specs, f"/{name}/{key}"), tensor), key


def step_and_put_back(
    local: torch.optim.Optimizer, parameter: torch.Tensor, untouched: torch.Tensor
) -> None:
    state = local.state[parameter]
    kept = {key: tensor.clone() for key, tensor in state.items() if tensor.dim()}
    initial = local.param_groups[0].get("initial_accumulator_value", 0.0)
    value = parameter.detach().clone()
    local.step()
    with torch.no_grad():
        parameter[untouched] = value[untouched]
    for key, tensor in state.items():
        if tensor.dim():
            before = kept.get(key, torch.full_like(tensor, initial))
            tensor[untouched] = before[untouched]


def test_a_table_stores_the_rows_that_were_stepped() -> None:
    store, optimizers = hosting(table_spec("users", (1_000_000_000, 4)))
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    gradient = Gradient("users", 0, torch.ones(2, 4), torch.tensor([5, 999_999_999]))
    step = optimizers.prepare(adam, [gradient])
    step.run()
    assert optimizers.commit(step) == [2]
    versions = {info.spec.name: info.version for info in store.listing()}
    assert versions == {
        "users": 2,
        "users/Adam/step": 1,
        "users/Adam/exp_avg": 1,
        "users/Adam/exp_avg_sq": 1,
    }
    assert len(table_of(store.get("users/Adam/exp_avg"))) == 2
    assert store.get("users/Adam/exp_avg").spec.tensor.shape[0] == 1_000_000_000


def test_rows_that_come_later_begin_with_fresh_state() -> None:
    store, optimizers = hosting(table_spec("users", (100, 2), ZEROS))
    made_by = torch.optim.Adagrad([torch.empty(0)], initial_accumulator_value=0.5)
    program = optimizer_program(made_by)
    for rows in ([3], [4, 3]):
        gradient = Gradient("users", 0, torch.ones(len(rows), 2), torch.tensor(rows))
        step = optimizers.prepare(program, [gradient])
        step.run()
        optimizers.commit(step)
    sums = store.get("users/Adagrad/sum").rows(torch.tensor([3, 4, 5]))
    assert sums[:, 0].tolist() == [2.5, 1.5, 0.5]


def test_keys_without_a_row_have_their_gradients_dropped() -> None:
    spec = table_spec("users", (0, 2), ZEROS, dynamic(admission_count=2))
    store, optimizers = hosting(spec)
    program = optimizer_program(torch.optim.SGD([torch.empty(0)], lr=1.0))
    users = store.get("users")
    for keys, expected in (
        ([7, 9, 7], [0.0, 0.0]),
        ([9, 8, 9], [0.0, -2.0]),
        ([7, 9], [-1.0, -3.0]),
    ):
        gradient = Gradient("users", 0, torch.ones(len(keys), 2), torch.tensor(keys))
        step = optimizers.prepare(program, [gradient])
        step.run()
        optimizers.commit(step)
        assert users.rows(torch.tensor([7, 9]))[:, 1].tolist() == expected
    assert users.info().table.rows == 2
    assert users.info().table.waiting_keys == 1
    assert users.info().table.dropped_gradients == 3


def test_the_first_state_evicts_what_no_longer_fits() -> None:
    limits = dynamic(max_bytes=20_000)
    store, optimizers = hosting(table_spec("users", (0, 8), ZEROS, limits))
    table = table_of(store.get("users"))
    table.make_room(table.find(torch.arange(200)), VariableMemoryLimit())
    store.get("users").put_rows(torch.arange(200), torch.ones(200, 8))
    gradient = Gradient("users", 0, torch.ones(3, 8), torch.tensor([0, 500, 199]))
    program = optimizer_program(torch.optim.Adam([torch.empty(0)], lr=1.0))
    step = optimizers.prepare(program, [gradient])
    step.run()
    optimizers.commit(step)
    assert table.nbytes <= 20_000
    assert 100 < len(table) <= table.most_rows() < 200
    read = store.get("users").rows(torch.tensor([0, 500, 199]))
    assert read[:, 0].tolist() == pytest.approx([0.0, -1.0, 0.0], abs=1e-6)
    averages = store.get("users/Adam/exp_avg").rows(torch.tensor([0, 500, 199, 9]))
    assert averages[:, 0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.0])


def test_a_step_of_more_rows_than_fit_is_refused_before_anything_changes() -> None:
    store, optimizers = hosting(table_spec("users", (0, 8), ZEROS, dynamic(max_rows=3)))
    program = optimizer_program(torch.optim.SGD([torch.empty(0)], lr=1.0))
    rows = torch.tensor([1, 2, 3, 4, 1])
    with pytest.raises(InvalidArgumentError, match="must store 4 rows at once"):
        optimizers.prepare(program, [Gradient("users", 0, torch.ones(5, 8), rows)])
    assert len(table_of(store.get("users"))) == 0
    optimizers.prepare(program, [Gradient("users", 0, torch.ones(4, 8), rows[:4] % 3)])


def test_rows_are_as_they_were_if_there_is_no_memory_for_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, optimizers = hosting(SPEC, made(table_spec("items", (ROWS, COLUMNS))))
    before = {name: store.get(name).rows(torch.arange(ROWS)) for name in NAMES}
    program = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    rows = torch.arange(3)
    gradients = [Gradient(name, 0, torch.ones(3, COLUMNS), rows) for name in NAMES]
    step = optimizers.prepare(program, gradients)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", out_of_memory)
        with pytest.raises(MemoryError, match="needs memory for 64 rows of 12 bytes"):
            step.run()
    for name in NAMES:
        assert torch.equal(store.get(name).rows(torch.arange(ROWS)), before[name])


NAMES = ("items", "users")


def out_of_memory(*_: object, **__: object) -> torch.Tensor:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.SGD])
def test_a_table_takes_no_dense_gradient(cls: Any) -> None:
    _, optimizers = hosting(SPEC)
    gradient = Gradient("users", 0, torch.zeros(ROWS, COLUMNS))
    with pytest.raises(InvalidArgumentError, match="the variable is a table"):
        optimizers.prepare(optimizer_program(cls([torch.empty(0)])), [gradient])


def test_state_that_is_no_table_does_not_fit_one() -> None:
    store, optimizers = hosting(SPEC)
    owner = store.get("users")
    store.put_slot("users/RMSprop/square_avg", "users", torch.empty(0, COLUMNS))
    gradient = Gradient("users", 0, torch.ones(1, COLUMNS), torch.tensor([3]))
    program = optimizer_program(torch.optim.RMSprop([torch.empty(0)]))
    with pytest.raises(RuntimeError, match="the optimizer needs a table"):
        optimizers.prepare(program, [gradient])
    assert owner.version == 1


def test_sparse_adam_takes_row_sparse_gradients_only() -> None:
    _, optimizers = hosting(made(SPEC))
    program = optimizer_program(torch.optim.SparseAdam([torch.empty(0)]))
    gradient = Gradient("users", 0, torch.ones(ROWS, COLUMNS))
    with pytest.raises(InvalidArgumentError, match="SparseAdam does not support dense"):
        optimizers.prepare(program, [gradient])


def test_a_gradient_of_another_dtype_is_refused() -> None:
    _, optimizers = hosting(SPEC)
    program = optimizer_program(torch.optim.SGD([torch.empty(0)]))
    rows = torch.tensor([3])
    gradient = Gradient("users", 0, torch.ones(1, COLUMNS, dtype=torch.float64), rows)
    with pytest.raises(InvalidTypeError, match=r"is torch\.float64, the variable"):
        optimizers.prepare(program, [gradient])
