"""Steps whose push is answered by the values that the next step starts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy, Variable
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.reads import NOTHING_FOLLOWS, and_read
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from tests.client.clusters import Cluster, running
from tests.client.connections import connected
from tests.client.parameter_server.calls import calls
from tests.client.parameter_server.training import (
    batch,
    bytes_of,
    loss_of,
    make_model,
)
from tests.faults import CutAt, FaultyProxy, Verdict
from tests.full import a_few

pytestmark = pytest.mark.plain_pushes_too

STEPS = 5
# More elements than values of that many bytes are kept apart.
_LARGE = 3 << 20


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    with running(2, num_workers=1) as cluster:
        yield cluster


class Training:
    """A small network under Adam.

    Args:
        strategy: Where it is trained.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = make_model()
        adam = torch.optim.Adam(self.module.parameters(), lr=0.02)
        self.optimizer = DistributedOptimizer(adam)
        self.pushes = 1
        self.is_stale = False

    def step(self, inputs: torch.Tensor) -> list[bytes]:
        begun_with = bytes_of(self.module)
        for _ in range(self.pushes):
            self.optimizer.zero_grad()
            loss_of(self.module, inputs).backward()
            self.optimizer.step()
            is_fresh = bytes_of(self.module) != begun_with
            assert is_fresh or self.is_stale
        return begun_with

    def run(self, *numbers: int) -> list[list[bytes]]:
        """Takes steps; returns what each began with."""
        return [self.strategy.run(self.step, args=(batch(n),)) for n in numbers]

    def values(self) -> list[bytes]:
        self.strategy.refresh()
        return bytes_of(self.module)


def trained(cluster: Cluster, **settings: Any) -> list[list[bytes]]:
    with cluster.strategy(**settings) as strategy:
        training = Training(strategy)
        return [*training.run(*range(STEPS)), training.values()]


@pytest.fixture
def expected() -> list[list[bytes]]:
    with running(1) as cluster:
        return trained(cluster, fused_steps=False)


@pytest.mark.fast_pushes
def test_a_lone_worker_sends_one_request_a_step_and_gets_the_same_bytes(
    expected: list[list[bytes]],
) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        found = training.run(0)
        before = [calls(one, "Read", "BeginStep", "Update") for one in cluster.servers]
        found += training.run(*range(1, STEPS))
        after = [calls(one, "Read", "BeginStep", "Update") for one in cluster.servers]
        assert [*found, training.values()] == expected
    spent = torch.tensor(after) - torch.tensor(before)
    assert spent.tolist() == [[0, 0, STEPS - 1]] * 2


@a_few(
    "verdict",
    [Verdict.CUT_WITHIN, Verdict.CUT_AFTER],
    "the session repeats a request wherever it was cut",
)
def test_a_push_whose_answer_is_lost_is_applied_once_and_read_anew(
    expected: list[list[bytes]], verdict: Verdict
) -> None:
    with running(1) as cluster, FaultyProxy(cluster.servers[0]) as proxy:
        with Cluster([proxy.address], 1).strategy() as strategy:
            training = Training(strategy)
            found = training.run(0)
            for number in range(1, STEPS):
                proxy.judge = CutAt(number, verdict)
                found += training.run(number)
            proxy.judge = CutAt(-1)
            assert [*found, training.values()] == expected
        assert proxy.cuts > 1


def test_values_that_were_written_since_are_what_the_next_step_starts_with(
    alone: Cluster,
) -> None:
    with alone.strategy() as strategy:
        training = Training(strategy)
        with strategy.scope():
            other = Variable(1.0)
        training.run(0, 1)
        with torch.no_grad():
            for parameter in training.module.parameters():
                parameter.fill_(3.0)
        other.assign(5.0)
        written = bytes_of(training.module)
        assert training.run(2) == [written]
        assert strategy.run(other.value).item() == 5.0


def _rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.3


def _freezing(training: Training) -> None:
    parameter = next(training.module.parameters()).requires_grad_(False)
    parameter.grad = None


def _thawing(training: Training) -> None:
    next(training.module.parameters()).requires_grad_(True)


def _list(training: Training) -> None:
    training.optimizer.param_groups[0]["betas"] = [0.5, 0.6]


def _within_list(training: Training) -> None:
    training.optimizer.param_groups[0]["betas"][0] = 0.1


def _data(training: Training) -> None:
    parameter = next(training.module.parameters())
    parameter.data = parameter.detach() * 2


_CHANGES: Sequence[Callable[[Training], None]] = (
    _rate,
    _freezing,
    _thawing,
    _list,
    _within_list,
    _data,
)


@pytest.mark.parametrize("settings", [{}, {"pushes_in_flight": 1}])
def test_what_changes_between_steps_is_part_of_the_next_one(
    settings: dict[str, Any],
) -> None:
    def values(**chosen: Any) -> list[list[bytes]]:
        with running(1, num_workers=1) as cluster, cluster.strategy(**chosen) as own:
            training = Training(own)
            training.is_stale = "pushes_in_flight" in chosen
            found = []
            for number, change in enumerate([lambda _: None, *_CHANGES]):
                change(training)
                training.run(number)
                found.append(training.values())
            return found

    assert values(**settings) == values(fused_steps=False)


def test_gradients_go_where_their_parameters_are_now_and_as_they_are() -> None:
    with running(2, num_workers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            table, dense = nn.Embedding(4, 2), nn.Linear(2, 1)
            module = nn.ModuleList([table, dense])
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def step() -> None:
            optimizer.zero_grad()
            score = dense(table(torch.tensor([1]))).sum()
            (score + table(torch.tensor([2])).sum()).backward()
            optimizer.step()

        def after_a_step() -> tuple[float, float]:
            strategy.run(step)
            strategy.refresh()
            return table.weight[2, 0].item(), dense.bias.item()

        assert [after_a_step(), after_a_step()] == [(-1.0, -1.0), (-2.0, -2.0)]
        table.sparse = True
        assert after_a_step() == (-3.0, -3.0)
        table.sparse = False
        list.pop(optimizer.param_groups[0]["params"])
        optimizer.add_param_group({"params": [dense.bias], "lr": 10.0})
        assert after_a_step() == (-4.0, -13.0)


def test_runs_of_several_pushes_read_what_the_last_one_made(alone: Cluster) -> None:
    found = []
    for fused in (False, True):
        with running(1) as cluster, cluster.strategy(fused_steps=fused) as strategy:
            training = Training(strategy)
            training.pushes = 2
            found.append([*training.run(0, 1, 2), training.values()])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("fused", "seen", "size"),
    [
        (None, 2.0, 1),
        pytest.param(True, 1.0, 1, marks=pytest.mark.fast_pushes),
        pytest.param(True, 1.0, _LARGE, marks=pytest.mark.fast_pushes),
    ],
)
def test_several_workers_see_each_other_at_once_unless_steps_are_to_be_fused(
    fused: bool | None, seen: float, size: int
) -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(0, fused_steps=fused) as chief,
        cluster.strategy(1, fused_steps=fused) as other,
    ):
        steps = [_counting(one, size) for one in (chief, other)]
        assert [step() for step in steps] == [0.0, 1.0]
        # The other one's update came after the answer to this one's.
        assert steps[0]() == seen
        assert steps[0]() == 3.0


def _counting(strategy: ParameterServerStrategy, size: int) -> Callable[[], float]:
    with strategy.scope():
        module = nn.Linear(1, size, bias=False)
        nn.init.zeros_(module.weight)
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

    def step() -> float:
        begun_with = module.weight[0].item()
        optimizer.zero_grad()
        module(torch.full((1, 1), -1.0)).sum().backward()
        optimizer.step()
        return begun_with

    return lambda: strategy.run(step)


def test_a_large_push_and_its_answer_go_by_grpc_as_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", "grpc")
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            module = nn.Linear(1000, 600, bias=False)
            nn.init.zeros_(module.weight)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def step() -> float:
            optimizer.zero_grad()
            module(-torch.ones(1, 1000)).sum().backward()
            optimizer.step()
            return module.weight.sum().item()

        assert [strategy.run(step) for _ in range(3)] == [6e5, 12e5, 18e5]


def test_what_is_only_kept_is_refused(alone: Cluster) -> None:
    with connected(alone.servers[0]) as connection:
        kept = updates.keep(BackwardPass(optimizer="SGD", number=1), [])
        with pytest.raises(InvalidArgumentError, match="to be kept by Update"):
            connection.call(and_read(kept, NOTHING_FOLLOWS, ()))


def test_a_refresh_of_unchanged_variables_brings_versions_alone() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            module = nn.ParameterList(torch.zeros(100) for _ in range(160))
        strategy.refresh()
        before = strategy.traffic()
        strategy.refresh()
        spent = strategy.traffic() - before
    assert len(module) == 160
    assert spent.received_bytes < 160 * 8
