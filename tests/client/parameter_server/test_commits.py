"""Contributions to synchronous steps that some servers cannot count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch

from stratagem._parameter_server.hosting.steps import Contributions, Staged, StepTracker
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import updates, variables
from stratagem._ps_client.requests.updates import SentGradient
from stratagem.consistency import Sync
from stratagem_proto.errors import UnstagedContributionError
from stratagem_proto.protocol import session_name
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.connections import IDENTITY
from tests.conftest import TOKEN
from tests.psserver.wire import sgd
from tests.simulation.programs.adding import spec

_MARK = StepMark(group="SGD", step=1)


@contextmanager
def two_servers() -> Iterator[tuple[list[ParameterServer], ServerGroup]]:
    """Two servers with a variable each, and the only worker that trains it."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN)))
            for task in range(2)
        ]
        group = ServerGroup([server.address for server in servers], IDENTITY)
        stack.callback(group.close)
        for task in range(2):
            group.call(task, variables.create([spec("v", torch.zeros(2))], [torch.zeros(2)]))
        yield servers, group


def staged(group: ServerGroup) -> Staged:
    """Stages a part of the first step on both servers."""
    contribution = Contribution(step=_MARK, num_workers=1, replicas=1, reduction=REDUCTION_SUM)
    gradients = [SentGradient("v", torch.ones(2), 0)]
    group.call_all({task: updates.step(sgd(), gradients, contribution) for task in range(2)})
    return Staged(contribution, [])


def test_what_another_server_has_lost_does_not_count_on_the_first_one() -> None:
    with two_servers() as (servers, group):
        tracker = StepTracker(Sync(), worker=0, num_workers=1)
        tracker.add("SGD")
        contributions = Contributions(group, tracker, peer_seconds=10)
        part = staged(group)
        # As after a pause that was longer than the lease, while others needed the memory.
        rounds = servers[1]._state.rounds
        rounds.session_ended(session_with(group, 1), "it went")
        rounds.reclaim()
        with pytest.raises(UnstagedContributionError, match="nothing staged"):
            contributions.commit(part)
        assert [server._state.rounds.closed("SGD") for server in servers] == [0, 0]
        contributions.commit(staged(group))
        assert [server._state.rounds.closed("SGD") for server in servers] == [1, 1]


def session_with(group: ServerGroup, server: int) -> bytes:
    session = group._connections[server].session
    assert session is not None
    return session_name(session.identifier)
