"""Programs that decide, as chiefs, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem._ps_client.arbitration import TaskArbitration, new_arbitration
from stratagem._ps_client.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.server import ParameterServer

CHIEF = Identity(ROLE_CHIEF, "chief", 0)


def chief_of(*servers: ParameterServer) -> TaskArbitration:
    """A chief that was just started, for the replicas of task 0."""
    return new_arbitration(0, ",".join(server.address for server in servers), CHIEF)


@contextmanager
def at_work(chief: TaskArbitration) -> Iterator[TaskArbitration]:
    """Lets a chief decide while the block runs; it keeps what it has decided."""
    chief.begin()
    try:
        yield chief
    finally:
        chief.end()
