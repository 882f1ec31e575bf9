"""Running statistics and other buffers of modules, with several replicas."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    PerReplica,
    Strategy,
    UnimplementedError,
)
from tests.client.two_replicas import number

pytestmark = pytest.mark.usefixtures("four_cpus")

HALVES = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0)).unbind()


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param(["CPU:0", "CPU:1"])


def norm_in(strategy: Strategy, affine: bool = True) -> Any:
    with strategy.scope():
        return nn.BatchNorm1d(3, affine=affine)


def after_one_batch(batch: Tensor, times: int = 1) -> Any:
    norm: Any = nn.BatchNorm1d(3)
    for _ in range(times):
        norm(batch)
    return norm


def test_each_replica_keeps_statistics_of_its_own_batch(strategy: Strategy) -> None:
    norm = norm_in(strategy)

    def fn(batch: Tensor) -> Tensor:
        norm(batch)
        mean: Tensor = norm.running_mean
        return mean

    for times in (1, 2):
        means = strategy.run(fn, (PerReplica(HALVES),)).values
        first = after_one_batch(HALVES[0], times).running_mean
        torch.testing.assert_close(means[0], first)
    # Between runs, the second replica's statistics become those of the first.
    start = after_one_batch(HALVES[0])
    start(HALVES[1])
    torch.testing.assert_close(means[1], start.running_mean)


def test_norms_that_would_need_the_other_replicas_are_refused(strategy: Strategy) -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    message = r"Sequential\.1 is an nn\.SyncBatchNorm.*nn\.GroupNorm"
    with pytest.raises(UnimplementedError, match=message), strategy.scope():
        model = nn.SyncBatchNorm.convert_sync_batchnorm(build())
    with strategy.scope():
        model = build()
    with pytest.raises(UnimplementedError, match=r"nn\.SyncBatchNorm"), strategy.scope():
        nn.SyncBatchNorm.convert_sync_batchnorm(model)


def test_norms_that_would_need_other_replicas_are_right_where_there_are_none() -> None:
    alone = MirroredStrategy(["CPU:0"])
    with alone.scope():
        norm = nn.SyncBatchNorm(3)
    (batch, _), plain = HALVES, nn.BatchNorm1d(3)
    torch.testing.assert_close(alone.run(norm, (batch,)), plain(batch))


def test_the_first_replicas_buffers_are_the_modules(strategy: Strategy) -> None:
    """They are what `state_dict()` saves, and evaluation outside of replicas sees."""
    norm = norm_in(strategy)
    strategy.run(lambda batch: norm(batch).sum().detach(), (PerReplica(HALVES),))
    expected = after_one_batch(HALVES[0]).state_dict()
    torch.testing.assert_close(dict(norm.state_dict()), dict(expected))
    fresh = {key: torch.zeros_like(value) for key, value in expected.items()}
    norm.load_state_dict(fresh)
    counts = strategy.run(lambda: norm.num_batches_tracked).values
    assert [int(count) for count in counts] == [0, 0]


def test_a_buffer_may_be_replaced_in_a_replica(strategy: Strategy) -> None:
    with strategy.scope():
        module: Any = nn.Module()
        module.register_buffer("seen", torch.zeros(()))
        module.register_buffer("absent", None)

    def fn() -> Tensor:
        module.seen = module.seen + number() + 1.0
        assert module.absent is None
        seen: Tensor = module.seen
        return seen

    assert [float(seen) for seen in strategy.run(fn).values] == [1.0, 2.0]
    assert [float(seen) for seen in strategy.run(fn).values] == [2.0, 3.0]
    assert float(module.seen) == 2.0


def test_copies_of_a_module_are_plain(strategy: Strategy) -> None:
    norm = norm_in(strategy, affine=False)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert type(twin._buffers) is dict
        assert torch.equal(twin.running_var, torch.ones(3))
    assert type(norm.double()._buffers) is not dict
    assert strategy.run(lambda: norm.running_mean).values[1].dtype is torch.float64


def test_one_replica_leaves_modules_alone() -> None:
    norm = norm_in(MirroredStrategy(["CPU:0"]))
    assert type(norm._buffers) is dict
