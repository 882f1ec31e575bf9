"""Tables whose rows are stored in fewer bits than servers compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem.optim import RowWiseAdagrad
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.random_rows import InitialValues, round_to_nearest
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.restoration import read_restored
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.snapshots import Snapshot
from stratagem_storage.checkpoint.folder import NewCheckpoint, open_checkpoint, part_name
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.parts import write_part
from tests.checkpoints import load_from
from tests.full import a_few
from tests.psserver.optimization.twins import run
from tests.psserver.persistence.servers import client_of, killed, logged
from tests.psserver.replication.pairs import pair, state_of_backup, state_of_primary
from tests.psserver.replication.test_verification import compared
from tests.psserver.tables.specs import ZEROS, dynamic, hosting, table_of, table_spec
from tests.psserver.tables.test_tables_over_the_wire import ADAGRAD, read_rows, update_rows
from tests.psserver.wire import RawClient, optimizer_program

DTYPES = [torch.bfloat16, torch.float16]
SGD = optimizer_program(torch.optim.SGD([torch.empty(0)], lr=1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_changes_far_below_the_last_digit_move_rows_as_they_should(dtype: torch.dtype) -> None:
    """To the nearest number, none of them would ever move one."""
    rows, steps = 64, 200
    store, optimizers = hosting(table_spec("t", (rows, 32), ZEROS, row_dtype=dtype))
    each = torch.arange(rows)
    run(optimizers, SGD, [Gradient("t", 0, torch.full((rows, 32), -1.0), each)])
    assert (store.get("t").rows(each) == 1.0).all()
    change = torch.finfo(dtype).eps / 50
    assert round_to_nearest(torch.tensor(1 + change), dtype) == 1.0
    for _ in range(steps):
        run(optimizers, SGD, [Gradient("t", 0, torch.full((rows, 32), -change), each)])
    found = store.get("t").rows(each)
    assert found.dtype == torch.float32
    moved = (found - 1.0).mean() / (steps * change)
    # The mean of 2048 sums of 200 draws is within 1 of 100 of what it should be.
    assert abs(float(moved) - 1.0) < 0.05
    assert torch.equal(found, found.to(dtype).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_initial_value_before_it_is_stored_and_after(
    dtype: torch.dtype,
) -> None:
    spec = table_spec("t", (50, 6), row_dtype=dtype)
    store, optimizers = hosting(spec)
    users = store.get("t")
    before = users.rows(torch.arange(50))
    made = InitialValues(spec).whole()
    assert torch.equal(before, made.to(dtype).float())
    assert not torch.equal(before, made)
    stepped = torch.tensor([3, 4])
    run(optimizers, SGD, [Gradient("t", 0, torch.zeros(2, 6), stepped)])
    assert len(table_of(users)) == 2
    assert torch.equal(users.rows(torch.arange(50)), before)


def test_a_row_of_sixteen_numbers_takes_36_bytes() -> None:
    store, optimizers = hosting(table_spec("t", (0, 16), row_dtype=torch.bfloat16))
    program = optimizer_program(RowWiseAdagrad([torch.empty(0)]))
    run(optimizers, program, [Gradient("t", 0, torch.ones(5, 16), torch.arange(5))])
    table = table_of(store.get("t"))
    assert [arena.row_bytes for arena in table.arenas] == [32, 4]
    assert [arena.dtype for arena in table.arenas] == [torch.bfloat16, torch.float32]
    assert store.get("t").value.dtype == torch.float32


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (table_spec("t", (3, 2), ZEROS, row_dtype=torch.int32), "stored as DATA_TYPE_INT32"),
        (table_spec("t", (3, 2), ZEROS, row_dtype=torch.float32), "stored as DATA_TYPE_FLOAT32"),
        (
            table_spec("t", (3, 2), ZEROS, dtype=torch.float64, row_dtype=torch.float16),
            "rows of torch.float64 cannot be stored",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused(spec: VariableSpec, says: str) -> None:
    store, _ = hosting()
    with pytest.raises(InvalidArgumentError, match=says):
        store.create([spec], [torch.empty(0, 2, dtype=InitialValues(spec).dtype)])
    assert store.listing() == []


def trained(client: RawClient, dtype: torch.dtype) -> None:
    specs = [
        table_spec("rows", (40, 4), row_dtype=dtype),
        table_spec("words", (0, 3), table=dynamic(max_rows=20), row_dtype=dtype),
    ]
    client.create_as(specs, [])
    generator = torch.Generator().manual_seed(1)
    for number in range(30):
        rows = [number % 40, (7 * number + 1) % 40]
        update_rows(client, ADAGRAD, {"rows": (rows, torch.randn(2, 4, generator=generator))})
        keys = [number, number + 1000]
        update_rows(client, ADAGRAD, {"words": (keys, torch.randn(2, 3, generator=generator))})


def stored_bytes(server: ParameterServer) -> dict[str, list[Any]]:
    found = {}
    for name in ("rows", "words", "rows/Adagrad/sum"):
        arena = server._state.store.get(name).arena
        assert arena is not None
        bits = arena.storage[: len(arena.table)].view(torch.uint8)
        found[name] = [arena.dtype, bits.tolist()]
    return found


@a_few("dtype", DTYPES, "rows of either type are bytes in a log")
def test_a_server_that_comes_back_has_the_same_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with logged(folder) as server, client_of(server) as client:
        trained(client, dtype)
        before = stored_bytes(server)
        with logged(killed(folder)) as other, client_of(other, client):
            assert stored_bytes(other) == before
    # From the image that it left, it goes on with the same draws.
    with logged(folder) as server, client_of(server, client) as again:
        assert stored_bytes(server) == before
        gradient = {"rows": ([1], torch.full((1, 4), 0.01))}
        update_rows(again, ADAGRAD, gradient)
        found = read_rows(again, "rows", 1)
        assert found.dtype == torch.float32
        assert torch.equal(found, found.to(dtype).float())


@pytest.mark.full("a server that comes back reads the same records")
@pytest.mark.unlogged
def test_a_backup_has_the_same_bytes(tmp_path: Path) -> None:
    with pair(tmp_path, failover_seconds=15.0) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            trained(client, torch.bfloat16)
            assert compared(primary) > 0
            assert state_of_backup(backup) == state_of_primary(primary)


def saved(root: Path, row_dtype: torch.dtype | None) -> tuple[Path, torch.Tensor]:
    """A checkpoint of a trained table, and the rows that it had."""
    store, optimizers = hosting(table_spec("t", (30, 4), row_dtype=row_dtype))
    for number in range(5):
        rows = torch.arange(number, number + 9)
        gradient = Gradient("t", 0, torch.rand(9, 4) - 0.5, rows)
        run(optimizers, ADAGRAD, [gradient])
    snapshot, new = Snapshot(store), NewCheckpoint(root)
    part = write_part(new.folder, part_name(0), snapshot.contents, snapshot.taken())
    path = Path(str(new.commit(Index.of_parts([part]), 1)))
    return path, store.get("t").rows(torch.arange(30))


@pytest.mark.parametrize("after", [None, *DTYPES])
@pytest.mark.parametrize("before", [None, *DTYPES])
def test_a_checkpoint_keeps_the_bytes_and_is_read_into_any_dtype(
    before: torch.dtype | None, after: torch.dtype | None, tmp_path: Path
) -> None:
    path, rows = saved(tmp_path, before)
    entry = open_checkpoint(path).index.tensors["t"]
    assert entry.nbytes == 13 * 4 * (before or torch.float32).itemsize
    assert torch.equal(load_from(path)["t"], rows)
    spec = table_spec("t", (30, 4), row_dtype=after)
    (restored,) = read_restored(open_checkpoint(path), [spec])
    assert isinstance(restored.value, Table)
    arena = restored.value.value
    assert arena.dtype == (after or torch.float32)
    found = arena.read(restored.value.find(torch.arange(13)))
    assert torch.equal(found, round_to_nearest(rows[:13], arena.dtype).float())
    state = restored.value.arenas[1]
    assert state.dtype == torch.float32
