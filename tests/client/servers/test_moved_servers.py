"""Servers that are started again at other addresses, which a resolver knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import stratagem
from stratagem import ParameterServerStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.pending import Pending
from stratagem._ps_client.requests.variables import Writing, assign
from stratagem.coordinator import ClusterCoordinator
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.client.servers.moving_servers import (
    MovingServers,
    Resolver,
    counters,
)
from tests.conftest import TOKEN


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def servers(tmp_path: Path, stack: ExitStack) -> MovingServers:
    return MovingServers(tmp_path / "run", stack)


def test_a_worker_goes_on_where_its_server_has_gone(
    servers: MovingServers, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = stack.enter_context(ParameterServerStrategy(Resolver(servers)))
    _, counter = counters(strategy)
    strategy.save(servers.root)
    servers.move(1)
    counter.assign_add(2.0)
    assert counter.numpy() == 3.0
    assert f"is looked for at {servers.addresses[1]}" in caplog.text
    assert "went back to its last checkpoint" in caplog.text


def test_a_resolver_that_fails_leaves_servers_where_they_were(
    servers: MovingServers, stack: ExitStack
) -> None:
    resolver = Resolver(servers)
    strategy = ParameterServerStrategy(resolver, connect_seconds=0.1)
    stack.enter_context(strategy)
    _, counter = counters(strategy)
    resolver.silent = True
    servers.move(1)
    with pytest.raises(stratagem.UnavailableError, match="Check that the server runs"):
        counter.assign_add(2.0)


def test_workers_of_a_coordinator_follow_it(servers: MovingServers, stack: ExitStack) -> None:
    worker = stack.enter_context(WorkerServer(WorkerSettings(token=TOKEN)))
    resolver = Resolver(servers, worker.address)
    resolver.task_type = "chief"
    strategy = stack.enter_context(ParameterServerStrategy(resolver))
    _, counter = counters(strategy)
    coordinator = ClusterCoordinator(strategy)

    def step() -> None:
        counter.assign_add(2.0)

    coordinator.schedule(step)
    coordinator.join()
    strategy.save(servers.root)
    servers.move(1)
    assert counter.numpy() == 3.0  # the coordinator has found it
    coordinator.schedule(step)
    coordinator.join()
    assert counter.numpy() == 5.0


def test_a_lone_worker_trains_on_after_each_return_to_one_checkpoint(
    servers: MovingServers, stack: ExitStack
) -> None:
    strategy = stack.enter_context(ParameterServerStrategy(Resolver(servers)))
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer = stratagem.DistributedOptimizer(sgd)

    def step() -> float:
        begun_with = float(module[1].detach())
        for parameter in module:
            parameter.grad = -torch.ones(1)
        optimizer.step()
        return begun_with

    strategy.run(step)
    strategy.save(servers.root)
    for steps in (7, 5):
        servers.move(1)
        strategy.run(step)  # finds out
        began = [strategy.run(step) for _ in range(steps)]
        assert began == [2.0 + number for number in range(steps)]


def test_a_reader_lets_go_of_what_a_lost_run_had(servers: MovingServers, stack: ExitStack) -> None:
    strategy = stack.enter_context(ParameterServerStrategy(Resolver(servers)))
    _, counter = counters(strategy)
    strategy.save(servers.root)
    for added in (2.0, 3.0):
        servers.move(1)
        counter.assign_add(added)
        assert counter.numpy() == 1.0 + added
        # As many changes as in the other run.
        assert strategy.run(counter.value).item() == 1.0 + added


def test_a_write_behind_others_that_are_answered_goes_on_without_them(
    servers: MovingServers, stack: ExitStack
) -> None:
    strategy = ParameterServerStrategy(Resolver(servers), connect_seconds=5.0)
    stack.enter_context(strategy)
    _, counter = counters(strategy)
    strategy.save(servers.root)
    assert isinstance(strategy.extended, ParameterServerExtended)
    connection = strategy.extended._store.servers._connections[1]

    def added() -> Pending[None]:
        writing = Writing("on1", ASSIGN_MODE_ADD, torch.tensor(1.0))
        return connection.pipeline(assign([writing]).behind())

    earlier = [added(), added()]
    earlier[0].push()
    late = added()
    for pending in earlier:
        pending.result()
    # It goes back to before the two of which nobody sends anything again.
    servers.move(1)
    late.result()
    assert counter.numpy() == 2.0


@pytest.mark.parametrize("by", ["the optimizer", "a change"])
def test_who_steps_together_with_others_is_told_that_a_server_went_back(
    servers: MovingServers, stack: ExitStack, by: str
) -> None:
    strategy = ParameterServerStrategy(Resolver(servers), peer_seconds=10)
    stack.enter_context(strategy)
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    own = "sync" if by == "the optimizer" else None
    optimizer = stratagem.DistributedOptimizer(sgd, consistency=own)

    def step() -> None:
        for parameter in module:
            parameter.grad = torch.ones(1)
        optimizer.step()

    strategy.run(step)
    strategy.save(servers.root)
    strategy.set_consistency("sync", optimizer)
    for _ in range(2):
        strategy.run(step)
    servers.move(1)
    with pytest.raises(stratagem.SessionLostError, match="was restarted"):
        strategy.run(step)


def test_rows_that_were_asked_for_ahead_are_dropped_with_what_their_server_has_lost(
    servers: MovingServers, stack: ExitStack
) -> None:
    strategy = stack.enter_context(ParameterServerStrategy(Resolver(servers)))
    with strategy.scope():
        table = stratagem.nn.DynamicEmbedding(2)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    ids = torch.arange(40)

    def step() -> None:
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()

    strategy.run(step)
    strategy.save(servers.root)
    strategy.run(step)
    trained = table(ids)
    batches = iter(strategy.lookahead([ids, ids], lambda batch: [(table, batch)]))
    next(batches)
    servers.move(1)
    lost = table(ids)
    assert not torch.equal(lost, trained)
    assert torch.equal(strategy.run(lambda: table(ids)), lost)
