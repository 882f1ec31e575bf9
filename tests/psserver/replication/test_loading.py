"""Backups that load the image of a large state while their primary goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_proto.v1.replication_pb2 import Standing
from stratagem_psserver.replication.exchange import Window
from stratagem_psserver.replication.standby import Standby
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import client_of
from tests.psserver.replication.held_images import held_images
from tests.psserver.replication.pairs import (
    await_primary,
    pair,
    report_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.wire import LARGE, sgd
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

MIB = 1 << 20


def test_a_window_is_open_while_little_is_not_acknowledged() -> None:
    window = Window()
    window.send(10, 40 * MIB)
    assert window.is_open
    window.send(12, 40 * MIB)
    assert not window.is_open
    window.acknowledge(11)
    assert window.is_open
    window.send(13, 500 * MIB)
    assert not window.is_open
    window.acknowledge(13)
    assert window.is_open


def loading(backup: ParameterServer) -> Standby:
    """The state of a backup, whose image is being loaded."""
    assert backup._replicated is not None
    standby = backup._replicated._require_task()._backup.standby
    assert standby is not None and not standby.is_loaded
    return standby


def test_records_that_come_meanwhile_wait_in_bounded_memory(tmp_path: Path) -> None:
    elements = 4 * MIB // 4
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(elements))
            both.servers.pop(backup.settings.replica).stop(grace=0)
            with held_images() as held:
                backup = both.start(backup.settings.replica)
                held.await_loading()
                for _ in range(40):
                    client.update(sgd(), {"w": torch.full((elements,), -1.0)})
                standby = loading(backup)
                eventually(lambda: standby._nbytes > 64 * MIB)
                assert report_of(backup).standing == Standing.STANDING_CATCHING_UP
                assert not report_of(primary).view.HasField("backup")
                assert standby._nbytes <= 72 * MIB
            both.await_backup()
            assert state_of_backup(backup) == state_of_primary(primary)
            assert client.read("w")[0].unique().tolist() == [40.0]


def test_a_primary_is_heard_however_long_its_image_takes(tmp_path: Path) -> None:
    with pair(tmp_path, failover_seconds=0.5) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(2 * LARGE))
        both.servers.pop(backup.settings.replica).stop(grace=0)
        with held_images() as held:
            backup = both.start(backup.settings.replica)
            held.await_loading()
            standby, heard = loading(backup), number_of_beacons(backup)
            eventually(lambda: number_of_beacons(backup) > heard + 16)
            assert loading(backup) is standby
        both.await_backup()
        assert state_of_backup(backup) == state_of_primary(primary)


def number_of_beacons(backup: ParameterServer) -> int:
    """The number of the last beacon that a backup has heard."""
    assert backup._replicated is not None
    return backup._replicated._require_task()._backup._beacon


def test_a_primary_that_is_lost_meanwhile_is_followed_again(tmp_path: Path) -> None:
    with pair(tmp_path, first=[0], durability="log") as both:
        primary = both.servers[0]
        await_primary(primary)
        with client_of(primary) as client:
            client.create(w=torch.ones(2 * LARGE))
            before = client.everything()
        with held_images() as held:
            backup = both.start(1)
            held.await_loading()
            both.crash(primary)
            eventually(lambda: follows_nobody(backup))
        primary = both.start(0)
        assert both.await_backup() == (primary, backup)
        with client_of(primary, client) as client:
            assert client.everything() == before
        assert state_of_backup(backup) == state_of_primary(primary)


def follows_nobody(backup: ParameterServer) -> bool:
    """Whether a backup has given up what it was loading."""
    assert backup._replicated is not None
    return backup._replicated._require_task()._backup.standby is None
