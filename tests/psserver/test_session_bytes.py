"""What a server counts of each client."""

from __future__ import annotations

import torch

from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, sgd, status_of


def test_bytes_are_counted_for_whoever_moved_them() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as pushes,
        RawClient(server.address, TOKEN, Task(job="worker", index=1)) as pulls,
    ):
        pushes.open()
        pulls.open()
        pushes.create(weight=torch.ones(6))
        pushes.update(sgd(), {"weight": torch.ones(6)})
        pulls.read("weight")
        pulls.read("weight")
        counted = {
            session.task.index: (session.received_bytes, session.sent_bytes)
            for session in status_of(pulls).sessions
        }
    assert counted == {0: (48, 0), 1: (0, 48)}
