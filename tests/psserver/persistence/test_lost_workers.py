"""Servers that are killed while workers wait for one that was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.psserver.persistence.servers import killed, logged
from tests.psserver.synchronous.workers import losing
from tests.waiting import eventually

SOON: dict[str, Any] = {"rejoin_seconds": 0.1, "reconnect_seconds": 0.4}
LATE: dict[str, Any] = {**SOON, "rejoin_seconds": 600.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def test_who_was_told_that_a_worker_is_lost_is_told_so_after_a_kill(folder: Path) -> None:
    with logged(folder, **SOON) as server:
        first, _ = losing(server)
        eventually(lambda: not first.waits(server, 2))
        left = killed(folder)
    with logged(left, **LATE) as again:
        assert not first.waits(again, 2)
    # It has left an image.
    with logged(left, **LATE) as again:
        assert not first.waits(again, 2)


def test_a_worker_that_may_come_back_is_waited_for_after_a_kill(folder: Path) -> None:
    with logged(folder, **LATE) as server:
        first, _ = losing(server)
        left = killed(folder)
    with logged(left, **LATE) as again:
        assert first.waits(again, 2)
    with logged(left, **LATE) as again:
        assert first.waits(again, 2)
    with logged(left, **SOON) as again:
        eventually(lambda: not first.waits(again, 2))


def test_a_worker_that_comes_back_after_a_kill_is_not_lost_any_more(folder: Path) -> None:
    with logged(folder, **SOON) as server:
        first, second = losing(server)
        eventually(lambda: not first.waits(server, 2))
        left = killed(folder)
    with logged(left, **LATE) as again:
        second.contribute(again, 2, 30.0)
        assert first.values(again) == [-4.0, -4.0]
        first.contribute(again, 3, 0.0)
        second.lose(again)
        assert first.waits(again, 3)
