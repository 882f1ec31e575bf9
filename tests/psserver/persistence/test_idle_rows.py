"""Rows that go with time: a server that comes back, and a backup, have lost the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.variable_pb2 import EVICTION_ORDER_RAREST, TableSpec
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import DURABILITIES, client_of, killed, logged
from tests.psserver.replication.pairs import pair, report_of, state_of_backup, state_of_primary
from tests.psserver.replication.test_verification import compared
from tests.psserver.tables.specs import dynamic, table_of, table_spec
from tests.psserver.tables.test_tables_over_the_wire import ADAGRAD, update_rows
from tests.psserver.wire import RawClient
from tests.waiting import eventually

# Time is looked at four times as often as this.
SETTINGS: Any = {"reconnect_seconds": 0.4}
SECOND = dynamic(evict_after_milliseconds=1000)


def written(client: RawClient, *keys: int) -> None:
    update_rows(client, ADAGRAD, {"rows": (keys, torch.rand(len(keys), 4))})


def rows_of(server: ParameterServer) -> tuple[set[int], TableHistory, list[list[Any]]]:
    """The keys of a table, and all else that its future depends on."""
    table = table_of(server._state.store.get("rows"))
    marks = [mark[: len(table)].tolist() for mark in table.marks]
    values = [arena.storage[: len(table)].tolist() for arena in table.arenas]
    return {*marks[0]}, table.history(), [*marks, *values]


def made(client: RawClient, limits: TableSpec = SECOND) -> None:
    client.create_as([table_spec("rows", (0, 4), table=limits)], [])


def test_a_server_that_comes_back_has_lost_the_same_rows(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with logged(folder, **SETTINGS) as server, client_of(server) as client:
        made(client)
        written(client, 1, 2, 3)

        def are_gone() -> bool:
            written(client, 3)
            return rows_of(server)[0] == {3}

        eventually(are_gone)
        written(client, 4)
        patient = {**SETTINGS, "reconnect_seconds": 60.0}
        with logged(killed(folder), **patient) as other, client_of(other):
            found = rows_of(other)
        assert found[0] == {3, 4}
        assert found[1].evicted_rows == 2
        assert found[1].milliseconds >= 1000


def test_rows_go_while_nobody_writes(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with logged(folder, **SETTINGS) as server, client_of(server) as client:
        made(client, dynamic(evict_after_milliseconds=100))
        written(client, 1, 2, 3)
        eventually(lambda: not rows_of(server)[0])
    # It leaves an image when it is stopped.
    with logged(folder, **SETTINGS) as server, client_of(server, client):
        assert not rows_of(server)[0]
        assert rows_of(server)[1].evicted_rows == 3


@pytest.mark.full("images and logs have the same rows lost")
@pytest.mark.unlogged
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_backup_has_lost_the_same_rows(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability, failover_seconds=15.0, **SETTINGS) as both:
        primary, backup = both.await_backup()
        index = report_of(backup).replica.index
        with client_of(primary) as client:
            made(client, dynamic(evict_after_milliseconds=300, max_rows=20))
            written(client, *range(10))
            both.crash(backup)
            both.start(index)
            primary, backup = both.await_backup()

            def are_gone() -> bool:
                written(client, 100)
                return rows_of(primary)[0] == {100}

            eventually(are_gone)
            written(client, 101)
            assert compared(primary) > 0
            assert state_of_backup(backup) == state_of_primary(primary)
            both.crash(primary)
            # It goes on to tell the table of time.
            eventually(lambda: backup.replicated.is_serving and not rows_of(backup)[0])


def test_counts_of_writes_are_in_images(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    limits = dynamic(max_rows=20, eviction_order=EVICTION_ORDER_RAREST)
    with logged(folder) as server, client_of(server) as client:
        made(client, limits)
        for number in range(60):
            written(client, number % 7, number + 100)
        before = rows_of(server)
    assert before[1].aged
    with logged(folder) as server, client_of(server, client):
        assert rows_of(server) == before
