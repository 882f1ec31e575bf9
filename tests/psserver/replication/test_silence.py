"""Replicas that do not hear of each other, although both reach the arbiter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.message import Message

from stratagem_proto.v1.replication_pb2 import Standing
from stratagem_psserver.replication.backup import Backup
from stratagem_psserver.replication.exchange import Lease
from stratagem_psserver.replication.primary import Primary
from tests.psserver.persistence.servers import client_of
from tests.psserver.replication.pairs import Pair, pair, report_of, standing_of
from tests.relays import Relay
from tests.waiting import eventually


def test_a_primary_that_hears_nothing_sends_no_beacon_after_its_lease() -> None:
    lease = Lease(seconds=1.0, began=0.0)
    assert lease.may_send(0.0)
    first = lease.send(0.0)
    lease.acknowledge(first)
    late = [lease.send(0.5), lease.send(0.9)]
    assert lease.is_valid(0.9) and lease.may_send(0.9)
    assert not lease.is_valid(1.0) and not lease.may_send(1.0)
    lease.acknowledge(late[0])
    assert lease.is_valid(1.4) and lease.may_send(1.4)


def test_it_goes_on_once_all_beacons_have_come_back_late() -> None:
    lease = Lease(seconds=1.0, began=0.0)
    late = lease.send(0.0)
    assert not lease.may_send(5.0)
    lease.acknowledge(late)
    assert not lease.is_valid(5.0)
    assert lease.may_send(5.0)


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[tuple[Pair, Relay]]:
    """Two replicas, and what the second one reaches the first one by."""
    # So long that a busy machine is not taken for silence.
    with pair(tmp_path, first=[], failover_seconds=4.0) as both, both.relay(0) as relay:
        both.start(0, advertise=f"127.0.0.1:{relay.port}")
        eventually(lambda: standing_of(both.servers[0]) == Standing.STANDING_PRIMARY)
        both.start(1)
        both.await_backup()
        yield both, relay
        relay.release()


def test_the_backup_takes_over_and_the_primary_follows_it(relayed: tuple[Pair, Relay]) -> None:
    both, relay = relayed
    former, backup = both.await_backup()
    epoch = report_of(former).view.epoch
    relay.hold()
    eventually(lambda: standing_of(backup) == Standing.STANDING_PRIMARY)
    eventually(lambda: report_of(backup).view.HasField("backup"))
    assert both.await_backup() == (backup, former)
    assert report_of(backup).view.epoch == epoch + 2


async def nothing(*_: Any) -> None:
    pass


async def for_ever(*_: Any) -> None:
    await asyncio.Event().wait()


def test_a_silent_backup_is_not_taken_on_while_its_connection_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count()
    adjust = Primary._adjust

    async def counted(primary: Primary) -> bool:
        next(looks)
        return await adjust(primary)

    monkeypatch.setattr(Primary, "_adjust", counted)
    # As if it were suspended, and could not find out that it hears nothing.
    monkeypatch.setattr(Backup, "_watch", for_ever)
    with pair(tmp_path) as both:
        primary, _ = both.await_backup()
        with monkeypatch.context() as patched:
            patched.setattr(Backup, "_acknowledge", nothing)
            eventually(lambda: not report_of(primary).view.HasField("backup"))
            alone, enough = report_of(primary).view, next(looks) + 200
            eventually(lambda: next(looks) > enough)
            assert report_of(primary).view == alone
        with client_of(primary) as client:
            client.create(w=torch.zeros(1))
        both.await_backup()


class Nowhere:
    """A way to a host that neither answers nor refuses."""

    def call(self, address: str) -> Nowhere:
        return self

    async def send(self, message: Message) -> None:
        await asyncio.Event().wait()

    receive = send

    async def close(self) -> None:
        pass


def test_a_primary_that_cannot_be_called_is_silent_however_long_the_call_takes(
    tmp_path: Path,
) -> None:
    with pair(tmp_path) as both:
        former, backup = both.await_backup()
        assert backup._replicated is not None
        follower: Any = backup._replicated._require_task()._backup
        follower._peers = Nowhere()
        both.crash(former)
        eventually(lambda: standing_of(backup) == Standing.STANDING_PRIMARY)
