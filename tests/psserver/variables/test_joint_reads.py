"""Reading rows of many tables in one request, and of what else is read with them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from stratagem_proto.errors import RowIndexError
from stratagem_proto.v1.parameter_server_pb2 import Rows, Selection
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_BFLOAT16
from stratagem_psserver.variables.reads import ReadPlan
from stratagem_psserver.variables.snapshots import HeldSnapshots, Snapshots
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.fast.test_joint_tables import SPECS, Tables, pushes, some_keys
from tests.psserver.fast.test_row_groups import CASES

EMPTY = torch.empty(0, dtype=torch.int64)


def trained() -> VariableStore:
    generator = torch.Generator().manual_seed(1)
    server = Tables(CASES["Adagrad"], values={"weight": torch.randn(30, 3)})
    for _ in range(3):
        server.push([*pushes(generator, 90)])
    return server.store


def selected(keys: Sequence[tuple[str, torch.Tensor]]) -> list[Selection]:
    return [
        Selection(variable=name, rows=Rows(indices=rows.numpy().tobytes())) for name, rows in keys
    ]


def asked_keys() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    keys = [(each.name, some_keys(generator, each, 120)) for each in SPECS]
    # In another order, and again.
    keys[1] = (keys[1][0], keys[1][1].flip(0).repeat(2))
    return [
        *keys,
        ("weight", torch.tensor([7, 7, 1])),
        ("zeros", EMPTY),
        ("uniform/Adagrad/sum", EMPTY + 0),
    ]


def filled(plan: ReadPlan) -> list[torch.Tensor]:
    into = [torch.full(shape, 7.0).to(dtype) for dtype, shape in (e.kind for e in plan.selected)]
    plan.fill(into)
    return into


@pytest.mark.parametrize("narrowed", [False, True])
def test_rows_of_many_tables_are_those_of_each(narrowed: bool) -> None:
    store, keys = trained(), asked_keys()
    selections = selected(keys)
    if narrowed:
        for selection in selections[::2]:
            selection.narrowed_to = DATA_TYPE_BFLOAT16
    plan = ReadPlan.for_selections(store, selections)
    expected = [store.get(name).rows(rows) for name, rows in keys]
    for values in (plan.tensors(), filled(plan)):
        for each, selection, alone in zip(values, selections, expected, strict=True):
            is_narrow = selection.HasField("narrowed_to")
            assert torch.equal(each, alone.bfloat16() if is_narrow else alone)


def test_reading_stores_no_row_and_a_snapshot_has_its_own_rows() -> None:
    store, selections = trained(), selected(asked_keys())
    before = ReadPlan.for_selections(store, selections).tensors()
    counts = {each.name: len(each.keys()) for each in store.variables() if each.arena is not None}
    held = HeldSnapshots(Snapshots(), store.memory_limit)
    held.hold(b"session", b"cut", store)
    for spec in SPECS:
        variable = store.get(spec.name)
        variable.put_rows(EMPTY, variable.value.new_empty(0, *spec.tensor.shape[1:]))
    snapshot = held.get(b"session", b"cut")
    for values in (
        ReadPlan.for_selections(snapshot, selections).tensors(),
        filled(ReadPlan.for_selections(snapshot, selections)),
    ):
        assert all(map(torch.equal, values, before))
    assert counts == {
        each.name: len(each.keys()) for each in store.variables() if each.arena is not None
    }


@pytest.mark.parametrize("row", [-1, 400])
def test_a_row_that_a_table_does_not_have_is_refused_by_name(row: int) -> None:
    wrong = selected([("normal", torch.tensor([3])), ("zeros", torch.tensor([3, row, 4]))])
    with pytest.raises(RowIndexError, match=r"'zeros'.* has 400 rows"):
        ReadPlan.for_selections(trained(), wrong)
