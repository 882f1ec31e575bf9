"""Backups that take over while workers wait for one that was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratagem_psserver.server import ParameterServer
from tests.full import a_few
from tests.psserver.replication.pairs import (
    Pair,
    await_primary,
    pair,
    report_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.synchronous.workers import losing
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

SOON: dict[str, Any] = {"rejoin_seconds": 0.1, "reconnect_seconds": 0.4}
LATE = 600.0


def patient(both: Pair) -> tuple[ParameterServer, ParameterServer]:
    """A primary, and another backup, which would wait for long."""
    primary, backup = both.await_backup()
    index = report_of(backup).replica.index
    both.crash(backup)
    eventually(lambda: not report_of(primary).view.HasField("backup"))
    both.start(index, rejoin_seconds=LATE)
    return both.await_backup()


def await_equal(primary: ParameterServer, backup: ParameterServer) -> None:
    """Wait until a backup has applied what its primary has."""
    eventually(lambda: state_of_backup(backup) == state_of_primary(primary))


@pytest.mark.parametrize("comes_later", [False, True])
def test_who_was_told_that_a_worker_is_lost_is_told_so_by_the_next_primary(
    tmp_path: Path, comes_later: bool
) -> None:
    with pair(tmp_path, **SOON) as both:
        primary, backup = both.await_backup() if comes_later else patient(both)
        first, _ = losing(primary)
        eventually(lambda: not first.waits(primary, 2))
        if comes_later:
            primary, backup = patient(both)
        await_equal(primary, backup)
        both.crash(primary)
        await_primary(backup)
        assert not first.waits(backup, 2)


@a_few("comes_later", [False, True], "who comes later is shown by the test before")
def test_a_worker_that_may_come_back_is_waited_for_by_the_next_primary(
    tmp_path: Path, comes_later: bool
) -> None:
    with pair(tmp_path, reconnect_seconds=0.4, rejoin_seconds=LATE) as both:
        primary, backup = both.await_backup()
        first, second = losing(primary)
        if comes_later:
            primary, backup = patient(both)
        await_equal(primary, backup)
        both.crash(primary)
        await_primary(backup)
        assert first.waits(backup, 2)
        second.contribute(backup, 2, 30.0)
        assert first.values(backup) == [-4.0, -4.0]
