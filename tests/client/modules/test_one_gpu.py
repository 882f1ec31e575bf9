"""Two replicas on one GPU, as on two: what `CPU:0` and `CPU:1` cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stratagem import (
    CentralStorageStrategy,
    DistributedOptimizer,
    HierarchicalCopyAllReduce,
    InputOptions,
    Mirrored,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    PerReplica,
    ReductionToOneDevice,
    RunOptions,
    Strategy,
    Variable,
    VariableAggregation,
    config,
    get_replica_context,
)
from stratagem._hosting.hosting import hosting_of
from tests.client.small_model import BATCHES, loss_of, seeded_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

GPU = torch.device("cuda", 0)
HALVES = ["GPU:0", "GPU:1"]
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "whole": lambda: OneDeviceStrategy("GPU:0"),
    "mirrored": lambda: MirroredStrategy(HALVES),
    "hierarchical": lambda: MirroredStrategy(HALVES, HierarchicalCopyAllReduce()),
    "central": lambda: CentralStorageStrategy(HALVES, "CPU:0"),
    "central on the GPU": lambda: CentralStorageStrategy(HALVES, "GPU:0"),
}


@pytest.fixture(autouse=True)
def two_logical_gpus() -> Iterator[None]:
    config.set_logical_gpus(2)
    yield
    config.set_logical_gpus(1)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return STRATEGIES[request.param]()


class Normed(nn.Module):
    """A model with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = seeded_model(), nn.BatchNorm1d(1)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.norm(self.body(features))
        return output


def trained_plainly(steps: int) -> Any:
    model = seeded_model()
    optimizer = torch.optim.Adam(model.parameters())
    for batch in BATCHES[:steps]:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("concurrently", [False, True])
def test_training_equals_plain_torch(strategy: Strategy, concurrently: bool) -> None:
    with strategy.scope():
        model = seeded_model()
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

    def step(features: Tensor) -> torch.device:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, features)
        loss.backward()
        optimizer.step()
        return loss.device

    options = RunOptions(run_concurrently=concurrently)
    batches = DataLoader(TensorDataset(BATCHES.flatten(0, 1)), batch_size=6)
    for (batch,) in strategy.experimental_distribute_dataset(batches):
        devices = strategy.run(step, (batch,), options=options)
        assert set(strategy.experimental_local_results(devices)) == {GPU}
    expected = trained_plainly(len(BATCHES)).parameters()
    for mine, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)


def test_copies_stay_equal_and_apart() -> None:
    strategy = MirroredStrategy(HALVES)
    with strategy.scope():
        model = Normed()
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(features: Tensor) -> None:
        model(features).square().sum().backward()
        optimizer.step()

    strategy.run(step, (PerReplica(BATCHES[0].to(GPU).chunk(2)),))
    hosting = hosting_of(strategy.extended)
    assert hosting is not None
    for first, second in (hosted.leaves for hosted in hosting.parameters):
        assert (first.device, second.device) == (GPU, GPU)
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(first, second)
    means = strategy.run(lambda: model.norm.running_mean).values
    assert {mean.device for mean in means} == {GPU}
    assert torch.equal(*means)


def test_central_variables_are_beside_the_host_and_replicas_on_the_gpu() -> None:
    strategy = STRATEGIES["central"]()
    with strategy.scope():
        count = Variable(torch.zeros(2), aggregation=VariableAggregation.SUM)

    def fn() -> torch.device:
        ones = torch.ones(2)
        count.assign_add(ones)
        return ones.device

    devices = strategy.run(fn)
    assert set(strategy.experimental_local_results(devices)) == {GPU}
    assert count.device == torch.device("cpu")
    assert count.numpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("devices", [HALVES, HALVES[:1]])
def test_a_central_variable_is_read_where_replicas_compute(devices: list[str]) -> None:
    strategy = CentralStorageStrategy(devices, "CPU:0")
    with strategy.scope():
        weight = Variable([1.0, 2.0])

    def fn() -> Tensor:
        total: Tensor = (weight * torch.tensor([3.0, 4.0], device=GPU)).sum()
        total.backward()
        assert weight.grad is not None
        assert weight.grad.device == torch.device("cpu")
        return weight.grad.clone()

    for gradient in strategy.experimental_local_results(strategy.run(fn)):
        assert gradient.tolist() == [3.0, 4.0]


def test_values_are_reduced_gathered_and_differentiated() -> None:
    strategy = MirroredStrategy(HALVES)

    def fn() -> tuple[Tensor, Tensor, Tensor]:
        replica = get_replica_context()
        assert replica is not None
        number = float(replica.replica_id_in_sync_group or 0)
        x = torch.full((2,), number + 1, device=GPU, requires_grad=True)
        total = replica.all_reduce("sum", x)
        gathered = replica.all_gather(x, axis=0)
        (gradient,) = torch.autograd.grad((total * x.detach()).sum(), x)
        return total.detach(), gathered.detach(), gradient

    totals, gathered, gradients = strategy.run(fn)
    assert strategy.reduce("mean", totals, axis=None).tolist() == [3.0, 3.0]
    for part in strategy.experimental_local_results(gathered):
        assert part.tolist() == [1.0, 1.0, 2.0, 2.0]
    for part in strategy.experimental_local_results(gradients):
        assert part.tolist() == [3.0, 3.0]


def test_replicas_that_share_a_gpu_are_reduced_without_nccl() -> None:
    strategy: Any = MirroredStrategy(HALVES)
    assert type(strategy.extended._replicas.cross_device_ops) is ReductionToOneDevice
    value = PerReplica([torch.ones(3, device=GPU), torch.ones(3, device=GPU)])
    # Asked for all the same, it falls back.
    for ops in (NcclAllReduce(), HierarchicalCopyAllReduce()):
        result = ops.reduce("sum", value, value)
        assert isinstance(result, Mirrored)
        assert [part.tolist() for part in result.values] == [[2.0] * 3] * 2


def test_nccl_works_with_one_rank() -> None:
    value = torch.arange(4.0, device=GPU)
    (total,) = NcclAllReduce()._all_reduce([value])
    assert torch.equal(total, value)
    assert total.data_ptr() != value.data_ptr()


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_read_ahead_to_the_gpu(depth: int, pinned: bool) -> None:
    strategy = MirroredStrategy(HALVES)
    rows = torch.arange(2.0**16).reshape(-1, 2**10)
    loader = DataLoader(TensorDataset(rows), batch_size=8, pin_memory=pinned)
    options = InputOptions(experimental_per_replica_buffer_size=depth)
    seen = []
    for (batch,) in strategy.experimental_distribute_dataset(loader, options):
        assert {part.device for part in batch.values} == {GPU}
        # Work that is queued while the next batches are copied.
        seen.append(torch.cat([part * 2 for part in batch.values]))
    assert torch.equal(torch.cat(seen).cpu(), rows * 2)


def test_autocast_to_bfloat16_trains_on_the_gpu(strategy: Strategy) -> None:
    with strategy.scope():
        model = seeded_model()
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(features: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss: Tensor = loss_of(model, features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    parts = BATCHES[0].to(GPU).chunk(strategy.num_replicas_in_sync)
    batch = PerReplica(parts) if len(parts) > 1 else parts[0]
    losses = [strategy.reduce("mean", strategy.run(step, (batch,)), axis=None) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
