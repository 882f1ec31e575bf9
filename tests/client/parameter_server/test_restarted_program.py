"""A program that is run again while the servers still hold its variables."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from torch import nn

from stratagem import (
    AlreadyExistsError,
    AttachmentError,
    DistributedOptimizer,
    ParameterServerStrategy,
    Variable,
)
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster, running
from tests.client.networks import equal, loss_of, network, training_step
from tests.conftest import TOKEN


def trained(strategy: ParameterServerStrategy, steps: int) -> nn.Sequential:
    with strategy.scope():
        module = network()
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    for _ in range(steps):
        strategy.run(training_step(module, optimizer))
    strategy.barrier()
    return module


def trained_for(steps: int, strategy: ParameterServerStrategy, worker: int) -> nn.Sequential:
    return trained(strategy, steps)


def trained_locally(steps: int) -> nn.Sequential:
    module = network()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.step()
    return module


def test_it_goes_on_with_its_parameters_and_the_state_of_its_optimizer() -> None:
    with running(num_servers=2, num_workers=1) as cluster:
        for steps in (3, 0, 4):
            with cluster.strategy() as strategy:
                module = trained(strategy, steps)
    assert equal(module, trained_locally(7))


def test_it_says_so_and_how_to_begin_anew(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert not caplog.messages
        with cluster.strategy() as strategy, strategy.scope():
            _module = network()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert "/job:worker/task:0 goes on with the values of an earlier run" in message
    assert "'0.weight', '0.bias', '2.weight' and 1 more variables" in message
    assert "Restart the servers to begin anew" in message


def test_what_its_chief_had_not_created_yet_is_created(cluster: Cluster) -> None:
    with cluster.strategy() as strategy, strategy.scope():
        Variable(1.0, name="first").assign(5.0)
    with cluster.strategy() as strategy, strategy.scope():
        values = [Variable(1.0, name=name).numpy() for name in ("first", "second")]
    assert values == [5.0, 1.0]


def test_all_workers_of_a_synchronous_program_go_on_after_its_last_step(
    cluster: Cluster,
) -> None:
    for steps in (3, 4):
        program = partial(trained_for, steps)
        modules = cluster.run(program, consistency="sync")
    assert equal(*modules)
    uninterrupted = trained_locally(7)
    for mine, theirs in zip(modules[0].parameters(), uninterrupted.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_another_program_sees_the_first_difference(cluster: Cluster) -> None:
    with cluster.strategy() as strategy, strategy.scope():
        _earlier = network()
    with (
        cluster.strategy() as strategy,
        pytest.raises(AttachmentError) as caught,
        strategy.scope(),
    ):
        _other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    message = str(caught.value)
    assert "variable 0 is '0.weight' (float32, shape (4, 3)" in message
    assert "in /job:worker/task:0's program it is '0.weight' (float32, shape (5, 3)" in (message)
    assert "Restart the servers to begin anew" in message


def test_two_strategies_at_once_do_not_share_variables(cluster: Cluster) -> None:
    with cluster.strategy() as first, cluster.strategy() as second:
        with first.scope():
            mine = Variable(1.0, name="v")
        with second.scope(), pytest.raises(AlreadyExistsError, match="'v'"):
            Variable(2.0, name="v")
        assert mine.numpy() == 1.0


def test_a_cell_that_makes_its_strategy_again_is_told_to_close_the_former() -> None:
    with running() as cluster:
        former = cluster.strategy()
        expected = trained(former, 2)
        with (
            cluster.strategy() as again,
            pytest.raises(AlreadyExistsError, match=r"close\(\) of that one"),
        ):
            trained(again, 0)
        former.close()
        with cluster.strategy() as again:
            assert equal(trained(again, 0), expected)


def test_all_strategies_of_the_process_can_be_closed_at_once() -> None:
    with running() as cluster:
        former = cluster.strategy()
        expected = trained(former, 2)
        ParameterServerStrategy.close_all()
        with cluster.strategy() as again:
            assert equal(trained(again, 0), expected)
        ParameterServerStrategy.close_all()  # which are closed already


def test_a_strategy_that_lost_its_server_does_not_keep_the_names() -> None:
    """Whoever did not close it meets another server at the same address."""
    with ReservedAddress() as address:
        settings, cluster = ServerSettings(str(address), token=TOKEN), Cluster([str(address)], 1)
        with ParameterServer(settings):
            former = cluster.strategy()
            with former.scope():
                variable = Variable(1.0, name="v")
        with ParameterServer(settings), cluster.strategy() as strategy, strategy.scope():
            assert Variable(2.0, name="v").numpy() == 2.0
        assert variable.name == "v"
        former.close()
