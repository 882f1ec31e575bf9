"""Modules whose parameters live on servers, in one training program."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    ContextError,
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    ParameterServerStrategy,
    Variable,
    config,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster, running
from tests.client.networks import equal, loss_of, network, training_step
from tests.conftest import TOKEN
from tests.faults import Direction, FaultyProxy, Passing, Verdict

pytestmark = [pytest.mark.plain_pushes_too, pytest.mark.plain_servers_too]

HEADERS = 1  # the type of the HTTP/2 frame that opens a call


def test_a_state_dict_loaded_by_the_chief_reaches_the_other_workers(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        with chief.scope():
            written = network(0)
        with worker.scope():
            seen = network(1)
        written.load_state_dict(network(5).state_dict())
        chief.refresh()
        worker.refresh()
        assert equal(seen, network(5))


def test_training_after_loading_equals_the_same_locally(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = network(0)
    module.load_state_dict(network(5).state_dict())
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
    strategy.run(training_step(module, optimizer))
    strategy.refresh()
    plain = network(5)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    loss_of(plain).backward()
    reference.step()
    assert equal(module, plain)


def test_the_chief_alone_says_what_parameters_are(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, chief.scope():
        module = network()
    with cluster.strategy(1, peer_seconds=0.2) as worker:
        with worker.scope():
            module = network()
        module.load_state_dict(network(5).state_dict())
        with pytest.raises(FailedPreconditionError, match=r"'0\.weight'.*chief"):
            worker.run(lambda: None)


def test_a_parameter_written_in_a_replica_is_named_and_gets_its_value_back(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = network()

    def step() -> None:
        with torch.no_grad():
            dict(module.named_parameters())["2.bias"].add_(1)

    with pytest.raises(ContextError, match=r"'2\.bias' was written in a replica"):
        strategy.run(step)
    strategy.run(lambda: None)
    assert equal(module, network())


def test_a_parameter_that_changed_its_dtype_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = network()
    module.double()
    with pytest.raises(InvalidArgumentError, match=r"'0\.weight' now has"):
        strategy.run(lambda: None)


def test_the_state_of_an_optimizer_comes_and_goes(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = network()
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    strategy.run(training_step(module, optimizer))
    saved = optimizer.state_dict()
    assert float(saved["state"][0]["step"]) == 1
    strategy.run(training_step(module, optimizer))
    optimizer.load_state_dict(saved)
    again = optimizer.state_dict()
    assert float(again["state"][0]["step"]) == 1
    assert torch.equal(again["state"][1]["exp_avg"], saved["state"][1]["exp_avg"])
    slots = [
        place.name
        for place in strategy.extended.variable_placements()
        if place.slot_of == "0.weight"
    ]
    assert sorted(slots) == [
        "0.weight/Adam/exp_avg",
        "0.weight/Adam/exp_avg_sq",
        "0.weight/Adam/step",
    ]


def test_the_state_of_an_optimizer_takes_two_requests_however_large_its_model() -> None:
    calls = []

    def count(passing: Passing) -> Verdict:
        if passing.carries_message and passing.direction is Direction.TO_SERVER:
            calls.extend([passing] if passing.kind == HEADERS else [])
        return Verdict.PASS

    settings = ServerSettings(token=TOKEN, lease_seconds=3600)
    with (
        ParameterServer(settings) as server,
        FaultyProxy(server.address) as proxy,
        Cluster([proxy.address], 1).strategy() as strategy,
    ):
        with strategy.scope():
            module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
        optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

        def step() -> None:
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        strategy.run(step)
        proxy.judge = count
        assert len(optimizer.state_dict()["state"]) == 20
        # One lists the slot variables, one reads them.
        assert len(calls) == 2


def test_gradients_of_several_replicas_are_averaged_and_pushed_once(
    cluster: Cluster,
) -> None:
    config.set_logical_cpus(2)
    try:
        with cluster.strategy(num_replicas_per_worker=2) as strategy:
            with strategy.scope():
                module = nn.Linear(2, 1, bias=False)
            start = module.weight.detach().clone()
            optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

            def step() -> None:
                replica = stratagem.get_replica_context()
                assert replica is not None
                number = int(replica.replica_id_in_sync_group or 0)
                module(torch.full((1, 2), 2.0 * number)).sum().backward()
                optimizer.step()

            strategy.run(step)
            strategy.refresh()
            assert torch.equal(module.weight, start - 1.0)
    finally:
        config.set_logical_cpus(1)


def test_rows_of_a_sparse_gradient_are_pushed_as_rows(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = nn.Embedding(5, 2, sparse=True)
    plain = nn.Embedding(5, 2, sparse=True)
    plain.load_state_dict(table.state_dict())
    rows = torch.tensor([1, 3, 1])
    optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.1))
    reference = torch.optim.Adagrad(plain.parameters(), lr=0.1)

    def step() -> None:
        table(rows).pow(2).sum().backward()
        optimizer.step()

    strategy.run(step)
    strategy.refresh()
    plain(rows).pow(2).sum().backward()
    reference.step()
    torch.testing.assert_close(table.weight, plain.weight)


def test_variables_are_trained_like_parameters(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0, 2.0])
    optimizer = DistributedOptimizer(torch.optim.SGD([v.value()], lr=0.5))

    def step() -> None:
        optimizer.zero_grad()
        (v * v).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert v.numpy().tolist() == [0.0, 0.0]


def test_a_lazy_module_is_hosted_once_it_knows_its_shape(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        lazy = nn.LazyLinear(2)
    optimizer = DistributedOptimizer(torch.optim.SGD(lazy.parameters(), lr=0.5))

    def step() -> None:
        optimizer.zero_grad()
        lazy(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    strategy.run(step)
    before = lazy.weight.detach().clone()
    strategy.run(step)
    torch.testing.assert_close(lazy.weight.detach(), before - 0.5)


def test_tied_weights_are_one_variable(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        tied = nn.Sequential(first, second)
    names = [place.name for place in strategy.extended.variable_placements()]
    assert sorted(names) == ["0.bias", "0.weight", "1.bias"]
    assert tied[0].weight is tied[1].weight


def test_a_state_is_loaded_while_another_worker_steps() -> None:
    loaded = threading.Event()

    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        with strategy.scope():
            module = nn.Linear(2, 1)
        adam = DistributedOptimizer(torch.optim.AdamW(module.parameters(), lr=0.1))

        def step() -> None:
            adam.zero_grad()
            module(torch.ones(1, 2)).sum().backward()
            adam.step()

        step()
        if worker:
            while not loaded.is_set():
                step()
            return
        try:
            state = adam.state_dict()
            for _ in range(20):
                adam.load_state_dict(state)
        finally:
            loaded.set()

    with running(2, num_workers=2) as cluster:
        cluster.run(train)
