"""The rows of a table at one moment, read while they change."""

from __future__ import annotations

import random

import pytest
import torch

from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables import arena as arenas
from stratagem_psserver.tables.arena import Arena, TableSnapshot
from stratagem_psserver.variables.snapshots import Snapshot, Snapshots
from stratagem_psserver.variables.store import Variable, VariableStore
from tests.psserver.tables.specs import ZEROS, dynamic, hosting, table_of, table_spec

KINDS = {
    "fixed": table_spec("t", (80, 2)),
    "small": table_spec("t", (0, 2), table=dynamic(max_rows=30, admission_count=2)),
    "forgetful": table_spec("t", (0, 2), table=dynamic(evict_after_writes=4)),
}


def write(variable: Variable, generator: torch.Generator) -> None:
    """Changes rows, adds some, and counts keys that have none."""
    table = table_of(variable)
    keys = torch.randint(0, 80, (9,), generator=generator).unique()
    table.drop(torch.randint(80, 99, (3,), generator=generator).unique())
    found = table.find(keys)
    table.make_room(found, VariableMemoryLimit())
    table.store(found, {table.value: torch.rand(len(keys), 2, generator=generator)})


def present(variable: Variable) -> dict[str, list[object]]:
    """What a snapshot is to have of a table."""
    table = table_of(variable)
    keys, touched = table.stored()
    found = {"t": table.value.storage[: len(table)], "t[keys]": keys}
    if table.is_dynamic:
        seen, sights = table.admission.sights()
        found |= {"t[touched]": touched, "t[seen]": seen, "t[sights]": sights}
    return {name: value.tolist() for name, value in found.items()}


def table_store(kind: str, generator: torch.Generator) -> VariableStore:
    store, _ = hosting(KINDS[kind])
    for _ in range(8):
        write(store.get("t"), generator)
    return store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_has_what_there_was_while_rows_change_and_go(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written between two runs of it."""
    monkeypatch.setattr(arenas, "_RUN_BYTES", 24)
    generator, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    store = table_store(kind, generator)
    variable = store.get("t")
    expected = present(variable)
    snapshot = Snapshot(store)
    runs = snapshot.taken()
    found: dict[str, list[object]] = {}
    for content in snapshot.contents:
        rows = found.setdefault(content.spec.name, [])
        while len(rows) < content.tensor.shape[0]:
            if chance.random() < 0.3:
                write(variable, generator)
            rows += next(runs).tolist()
    assert found == expected
    assert present(variable) != expected


def test_a_snapshot_takes_the_memory_of_the_rows_that_change() -> None:
    store, _ = hosting(table_spec("t", (200_000, 2), ZEROS))
    table = table_of(store.get("t"))
    found = table.find(torch.arange(100_000))
    table.make_room(found, VariableMemoryLimit())
    table.store(found, {table.value: torch.ones(100_000, 2)})
    snapshot = table.snapshot()
    for _ in range(3):
        found = table.find(torch.arange(50))
        table.store(found, {table.value: torch.zeros(50, 2)})
    marks = len(table)  # a byte each
    assert marks < snapshot.nbytes < marks + 50_000


def test_a_table_keeps_nothing_for_a_snapshot_that_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(1)
    store = table_store("fixed", generator)
    snapshots = Snapshots()
    snapshots.close(snapshots.take(store))
    monkeypatch.delattr(TableSnapshot, "keep")
    write(store.get("t"), generator)


def test_states_that_come_and_go_leave_a_snapshot_as_it_is() -> None:
    store = table_store("fixed", torch.Generator().manual_seed(1))
    table = table_of(store.get("t"))
    expected = present(store.get("t"))
    snapshot = Snapshot(store)
    slot = table_spec("t/s", (80, 2), ZEROS)
    arena = Arena(table, slot)
    table.attach([arena])
    table.detach(arena)
    found = [run.tolist() for run in snapshot.taken()]
    assert found == list(expected.values())
