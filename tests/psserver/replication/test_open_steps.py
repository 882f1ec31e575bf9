"""Backups that come while workers have contributed to a step that is not complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import DURABILITIES
from tests.psserver.replication.pairs import (
    Pair,
    await_primary,
    pair,
    report_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.synchronous.workers import WORKERS, Worker
from tests.psserver.wire import RawClient
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


def prepared(both: Pair) -> tuple[ParameterServer, ParameterServer]:
    """A primary with an open step, and its backup, which has come since."""
    primary, backup = both.await_backup()
    with RawClient(primary.address, "") as client:
        client.open()
        client.create(v=torch.zeros(2))
    first, second = map(Worker, range(WORKERS))
    first.contribute(primary, 1, 0.0)
    second.contribute(primary, 1, 30.0)
    first.contribute(primary, 2, 0.0)
    index = report_of(backup).replica.index
    both.crash(backup)
    eventually(lambda: not report_of(primary).view.HasField("backup"))
    # Records behind the one that an image lacks, which it has.
    with RawClient(primary.address, "") as client:
        client.open()
        client.create(w=torch.zeros(2))
    both.start(index)
    return both.await_backup()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_backup_has_what_a_step_lacks_that_was_open_when_it_came(
    tmp_path: Path, durability: str
) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = prepared(both)
        assert state_of_backup(backup) == state_of_primary(primary)
        both.crash(primary)
        await_primary(backup)
        second = Worker(1)
        second.contribute(backup, 2, 30.0)
        assert second.values(backup) == [-4.0, -4.0]


def test_a_contribution_that_replaces_another_one_makes_no_difference(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = prepared(both)
        first, second = map(Worker, range(WORKERS))
        for worker in (first, second, first):
            worker.stage(primary, 3)
        index = report_of(backup).replica.index
        both.crash(backup)
        eventually(lambda: not report_of(primary).view.HasField("backup"))
        both.start(index)
        primary, backup = both.await_backup()
        assert state_of_backup(backup) == state_of_primary(primary)


def test_its_disk_has_it_as_well(tmp_path: Path) -> None:
    with pair(tmp_path, durability="log") as both:
        primary, backup = prepared(both)
        both.crash(primary)
        await_primary(backup)
        both.crash(backup)
        again = both.start(number_of(both, backup))
        await_primary(again)
        second = Worker(1)
        second.contribute(again, 2, 30.0)
        assert second.values(again) == [-4.0, -4.0]


def number_of(both: Pair, server: ParameterServer) -> int:
    """The number of a replica that has ended."""
    (index,) = [index for index, each in both.servers.items() if each is server]
    return index
