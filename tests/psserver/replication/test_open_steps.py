"""Backups that come while workers have contributed to a step that is not complete."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.replication_pb2 import Standing
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_psserver.server import ParameterServer
from tests.psserver.replication.pairs import (
    Pair,
    pair,
    report_of,
    standing_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.synchronous.contributors import mark
from tests.psserver.wire import RawClient, encoded, sgd, update_header
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

WORKERS = 2


class Worker:
    """One worker, wherever the server is at present."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._task = session_pb2.Task(job="worker", index=number)
        self._session = RawClient("localhost:1", "").session_id

    def _at(self, server: ParameterServer) -> RawClient:
        client = RawClient(server.address, "", self._task)
        client.session_id = self._session
        return client

    def contribute(self, server: ParameterServer, step: int, wait: float) -> None:
        """Commits ones to a step; waits until it is complete, if there is time to wait."""
        value = torch.ones(2)
        with self._at(server) as client:
            client.sequence = client.open().last_sequence
            header = update_header(client.key(), sgd(), {"v": value})
            contribution = pb.Contribution(
                step=mark(step),
                worker=self._number,
                reduction=REDUCTION_SUM,
                num_workers=WORKERS,
                replicas=1,
            )
            header.contribution.CopyFrom(contribution)
            client.upload("Update", encoded(header, [value]), pb.UpdateResponse)
            commit = pb.CommitContributionRequest(
                key=client.key(), step=mark(step), wait_seconds=wait
            )
            with suppress(DeadlineExceededError):
                client.unary("CommitContribution", commit, pb.CommitContributionResponse)

    def values(self, server: ParameterServer) -> list[float]:
        with self._at(server) as client:
            client.open()
            found: list[float] = client.read("v")[0].tolist()
            return found


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


def await_primary(server: ParameterServer) -> None:
    eventually(lambda: standing_of(server) == Standing.STANDING_PRIMARY)


@pytest.mark.parametrize("durability", ["none", "log"])
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
