"""Adagrad with one number for each row: its rule, what it takes, and what it is refused for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from stratagem.optim import RowWiseAdagrad
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.optimizers import rule_named
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, Partition
from stratagem_psserver.fast.same_bytes import is_elementwise
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.optimization.twins import run
from tests.psserver.tables.specs import hosting, made, table_of, table_spec
from tests.psserver.wire import model_spec, optimizer_program

Doubles = npt.NDArray[np.float64]

PROGRAM = optimizer_program(RowWiseAdagrad([torch.empty(0)], lr=0.1))


def exact(
    rows: Doubles, gradients: Sequence[Doubles], rate: float, eps: float, decay: float
) -> tuple[Doubles, Doubles]:
    """FBGEMM's `EXACT_ROWWISE_ADAGRAD` with the weight decay L2, in double precision."""
    rows, sums = rows.copy(), np.zeros(len(rows))
    for gradient in gradients:
        for row in range(len(rows)):
            sums[row] += np.mean((gradient[row] + decay * rows[row]) ** 2)
            multiplier = rate / (np.sqrt(sums[row]) + eps)
            correction = 1.0 - multiplier * decay
            rows[row] = correction * rows[row] - multiplier * gradient[row]
    return rows, sums


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [1e-8, 0.5])
def test_it_is_the_rule_of_fbgemm(eps: float, decay: float) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, *gradients = torch.randn(21, 10, 16, dtype=torch.float64, generator=generator)
    expected, sums = exact(rows.numpy(), [each.numpy() for each in gradients], 0.1, eps, decay)
    parameter = nn.Parameter(rows.float())
    optimizer = RowWiseAdagrad([parameter], lr=0.1, eps=eps, weight_decay=decay)
    for gradient in gradients:
        parameter.grad = gradient.float()
        optimizer.step()
    found = optimizer.state[parameter]["sum"]
    assert found.shape == (10,)
    assert np.allclose(parameter.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert np.allclose(found.numpy(), sums, rtol=1e-6)


def test_a_sparse_gradient_steps_its_rows_as_a_dense_one_of_them_does() -> None:
    torch.manual_seed(2)
    table, part = nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.empty(3, 4))
    part.data = table.data[[1, 4, 7]].clone()
    before = table.detach().clone()
    ours, theirs = (RowWiseAdagrad([one], weight_decay=0.1) for one in (table, part))
    for _ in range(4):
        part.grad = torch.randn(3, 4)
        rows = torch.tensor([[4, 1, 7, 4]])
        values = torch.stack([torch.zeros(4), part.grad[0], part.grad[2], part.grad[1]])
        table.grad = torch.sparse_coo_tensor(rows, values, (9, 4), check_invariants=True)
        ours.step()
        theirs.step()
    assert torch.equal(table[[1, 4, 7]], part)
    assert torch.equal(ours.state[table]["sum"][[1, 4, 7]], theirs.state[part]["sum"])
    others = [0, 2, 3, 5, 6, 8]
    assert torch.equal(table[others], before[others])
    assert not ours.state[table]["sum"][others].any()


@pytest.mark.parametrize("shape", [(6,), (), (6, 1)])
def test_rows_of_one_element_are_stepped_as_by_adagrad(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    one = nn.Parameter(torch.randn(shape))
    other = copy.deepcopy(one)
    ours = RowWiseAdagrad([one], lr=0.1, eps=1e-10)
    theirs = torch.optim.Adagrad([other], lr=0.1, eps=1e-10)
    for _ in range(5):
        one.grad = other.grad = torch.randn(shape)
        ours.step()
        theirs.step()
    assert torch.allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("setting", ["lr", "eps", "weight_decay"])
def test_no_number_is_negative(setting: str) -> None:
    for number in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=f"{setting} is "):
            RowWiseAdagrad([torch.empty(1)], **cast("Any", {setting: number}))


def test_several_variables_are_never_stepped_as_one() -> None:
    settings = dict(RowWiseAdagrad([torch.empty(1)]).param_groups[0])
    values = {key: settings[key] for key in ("lr", "eps", "weight_decay", "maximize")}
    assert not is_elementwise(rule_named("RowWiseAdagrad"), values, torch.float32)


def test_a_row_of_sixteen_numbers_takes_68_bytes() -> None:
    sizes = {}
    for name in ("RowWiseAdagrad", "Adagrad"):
        store, optimizers = hosting(table_spec("users", (1 << 20, 16)))
        cls: Any = rule_named(name).cls
        program = optimizer_program(cls([torch.empty(1)]))
        count = 1 << 14
        gradient = Gradient("users", 0, torch.ones(count, 16), torch.arange(count))
        run(optimizers, program, [gradient])
        table = table_of(store.get("users"))
        sizes[name] = [arena.row_bytes for arena in table.arenas]
        assert table.capacity == len(table) == count
        stored = sum(arena.storage.nbytes for arena in table.arenas)
        assert stored == count * sum(sizes[name])
        # Besides: a key, the time of its last write, and the index.
        assert table.statistics().bytes - stored < 70 * count
    assert sizes == {"RowWiseAdagrad": [64, 4], "Adagrad": [64, 64]}


@pytest.mark.parametrize("as_table", [False, True], ids=["variable", "table"])
def test_its_state_takes_memory_by_the_row(as_table: bool) -> None:
    spec = table_spec("users", (100, 16))
    store, optimizers = hosting(spec if as_table else made(spec))
    store.memory_limit = VariableMemoryLimit(store.memory_limit.used + 100 * 4 + (8 << 10))
    gradient = Gradient("users", 0, torch.ones(3, 16), torch.tensor([1, 5, 98]))
    run(optimizers, PROGRAM, [gradient])
    slot = store.get("users/RowWiseAdagrad/sum")
    assert slot.spec.tensor.shape == [100]
    sums = slot.rows(torch.arange(100))
    assert sums.shape == (100,)
    assert sums.nonzero().squeeze(1).tolist() == [1, 5, 98]


def test_a_part_of_columns_is_refused() -> None:
    store = VariableStore()
    spec = model_spec("wide/part_0", torch.zeros(4, 3))
    spec.partition.CopyFrom(Partition(full_shape=[4, 6], offset=[0, 0]))
    store.create([spec], [torch.zeros(4, 3)])
    gradient = Gradient("wide/part_0", 0, torch.ones(4, 3))
    with pytest.raises(InvalidArgumentError, match="partition along the first axis"):
        Optimizers(store).prepare(PROGRAM, [gradient])
    assert store.slots("wide/part_0") == []


def test_state_of_another_shape_is_refused() -> None:
    store = VariableStore()
    value = torch.zeros(4, 3)
    slot = model_spec("wide/RowWiseAdagrad/sum", torch.zeros(4, 3))
    slot.kind, slot.slot_of = VARIABLE_KIND_SLOT, "wide"
    store.create([model_spec("wide", value), slot], [value, torch.zeros(4, 3)])
    with pytest.raises(FailedPreconditionError, match=r"needs a tensor, .* of shape \[4\]"):
        Optimizers(store).prepare(PROGRAM, [Gradient("wide", 0, torch.ones(4, 3))])
