"""What becomes of requests while the disk does not take the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from tests.psserver.persistence.servers import client_of, killed, logged
from tests.psserver.wire import RawClient, encoded, sgd, status_of, update_header
from tests.waiting import eventually


class Disk:
    """The calls by which a log is written, which may fail.

    Attributes:
        failure: The number of the error that they raise, or 0.
        limit: The most bytes that one call writes.
        open: While it is not set, the disk hangs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure, self.limit = 0, 1 << 62
        self.open = Event()
        self.open.set()
        self._pwritev, self._pwrite, self._fdatasync = os.pwritev, os.pwrite, os.fdatasync
        for name in ("pwritev", "pwrite", "fdatasync"):
            monkeypatch.setattr(os, name, getattr(self, name))

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        self._fail()
        whole = b"".join(pieces)
        return self._pwrite(file, whole[: self.limit], offset)

    def pwrite(self, file: int, data: memoryview, offset: int) -> int:
        self._fail()
        return self._pwrite(file, data[: self.limit], offset)

    def fdatasync(self, file: int) -> None:
        self.open.wait()
        self._fail()
        self._fdatasync(file)

    def _fail(self) -> None:
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def update(client: RawClient) -> list[bytes]:
    """A step of "w" by -1, to be sent once or more."""
    gradients = {"w": torch.ones(3)}
    header = update_header(client.key(), sgd(), gradients)
    return encoded(header, list(gradients.values()))


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO])
def test_what_a_disk_does_not_take_is_answered_once_it_does(
    failure: int, tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "state").mkdir()
    with logged(tmp_path / "state") as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        disk.failure = failure
        messages = update(client)
        with pytest.raises(UnavailableError, match=os.strerror(failure)):
            client.upload("Update", messages, pb.UpdateResponse)
        with pytest.raises(UnavailableError, match="Nothing is lost"):
            client.read("w")
        disk.failure = 0
        eventually(lambda: reads(client))
        client.upload("Update", messages, pb.UpdateResponse)
        assert client.read("w")[0].tolist() == [-1.0] * 3
        copy = killed(tmp_path / "state")
        with logged(copy) as other, client_of(other, client) as again:
            assert again.read("w")[0].tolist() == [-1.0] * 3


def reads(client: RawClient) -> bool:
    try:
        client.read("w")
    except UnavailableError:
        return False
    return True


def test_a_server_tells_that_it_lives_while_its_disk_hangs(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "state").mkdir()
    with (
        logged(tmp_path / "state") as server,
        client_of(server) as client,
        ThreadPoolExecutor(1) as other,
    ):
        client.create(w=torch.zeros(3))
        # After these the disk is taken for a fast one.
        for _ in range(20):
            client.upload("Update", update(client), pb.UpdateResponse)
        disk.open.clear()
        try:
            answer = other.submit(client.upload, "Update", update(client), pb.UpdateResponse)
            eventually(lambda: status_of(client).parameter_server.log.writing_seconds > 0.0)
            for _ in range(20):
                client.heartbeat()
            assert not answer.done()
        finally:
            disk.open.set()
        answer.result(60)
        assert client.read("w")[0].tolist() == [-21.0] * 3


def test_writes_that_are_shorter_than_asked_for_are_gone_on_with(
    tmp_path: Path, disk: Disk
) -> None:
    (tmp_path / "state").mkdir()
    disk.limit = 7
    with logged(tmp_path / "state") as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        client.upload("Update", update(client), pb.UpdateResponse)
        copy = killed(tmp_path / "state")
        with logged(copy) as other, client_of(other, client) as again:
            assert again.read("w")[0].tolist() == [-1.0] * 3
