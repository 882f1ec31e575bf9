"""What a worker server says of itself."""

from __future__ import annotations

import threading

import torch

from stratagem_deploy.watching.asking import ServerPlace, ask
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.waiting import eventually
from tests.worker.links import PATIENCE, connected, payload_of

go_on = threading.Event()


def wait() -> None:
    go_on.wait(PATIENCE)


def status_of(worker: WorkerServer) -> GetStatusResponse:
    (answer,) = ask([ServerPlace(worker.address)], TOKEN, PATIENCE)
    assert answer.status is not None, answer.problem
    return answer.status


def test_functions_are_counted_while_they_wait_run_and_have_ended() -> None:
    with (
        WorkerServer(WorkerSettings(token=TOKEN)) as worker,
        connected(worker) as link,
    ):
        waiting = [link.run(n, payload_of(lambda: wait())) for n in (1, 2)]
        eventually(lambda: status_of(worker).worker_server.running == 1)
        told = status_of(worker)
        assert told.worker_server.queued == 1
        assert [one.role for one in told.sessions] == [ROLE_COORDINATOR]
        go_on.set()
        failing = link.run(3, payload_of(lambda: torch.empty(-1)))
        for future in waiting:
            future.result(PATIENCE)
        assert failing.exception(PATIENCE)
        # The client hears of an end before the thread goes on.
        eventually(lambda: status_of(worker).worker_server.running == 0)
        told = status_of(worker)
    assert dict(told.worker_server.ended) == {"OK": 2, "FUNCTION": 1}
    assert sum(told.worker_server.seconds.counts) == 3
    assert told.worker_server.running == told.worker_server.queued == 0
