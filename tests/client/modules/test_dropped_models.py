"""Models that a program drops, under strategies whose variables are in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
    Variable,
)
from stratagem.experimental import CentralStorageStrategy

pytestmark = pytest.mark.usefixtures("four_cpus")


class Model(nn.Module):
    """Dense parameters, rows of a table, and buffers."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(6, 4, sparse=sparse)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.norm(self.table(rows)))
        return found.square().sum()


def built(strategy: Strategy, sparse: bool = True) -> tuple[Model, DistributedOptimizer]:
    with strategy.scope():
        model = Model(sparse)
    return model, DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.5))


def trained(strategy: Strategy, model: Model, optimizer: DistributedOptimizer) -> None:
    def step() -> None:
        optimizer.zero_grad()
        model(torch.tensor([0, 2, 5])).backward()
        optimizer.step()

    for _ in range(3):
        strategy.run(step)


def hosted_objects() -> int:
    """How many objects are there that strategies make for parameters, and their variables."""
    gc.collect()
    kinds = ("HostedParameter", "HostedTable", "ReplicaBuffers", "DistributedOptimizer")
    return sum(
        type(one).__name__ in kinds or issubclass(type(one), Variable) for one in gc.get_objects()
    )


LOCAL: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(["CPU:0", "CPU:1"]),
    "one device": lambda: OneDeviceStrategy("CPU:0"),
    "central storage": lambda: CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "workers": MultiWorkerMirroredStrategy,
    "no cluster": ParameterServerStrategy,
}


TRIALS = [4, pytest.param(20, marks=pytest.mark.long)]


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("kind", LOCAL)
def test_models_that_a_program_drops_are_freed_with_their_state(kind: str, trials: int) -> None:
    strategy = LOCAL[kind]()

    def trial() -> None:
        trained(strategy, *built(strategy, sparse=False))

    before = hosted_objects()
    for _ in range(trials):
        trial()
    assert hosted_objects() == before
    assert not strategy.state_dict()
    model, _ = built(strategy, sparse=False)
    assert set(strategy.state_dict()) == set(model.state_dict())  # no numbers behind names


def test_a_checkpoint_has_nothing_of_what_was_dropped_and_not_collected() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        kept = Variable(1.0, name="kept")
    gc.disable()
    try:
        trained(strategy, *built(strategy, sparse=False))
        state = strategy.state_dict()
        assert set(state) == {"kept"}
        trained(strategy, *built(strategy, sparse=False))
        strategy.load_state_dict(state)
    finally:
        gc.enable()
    assert kept.numpy() == 1.0


def test_a_parameter_stays_hosted_without_the_module_it_was_built_in() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = nn.ModuleList([nn.BatchNorm1d(3)])
    model[0] = nn.SyncBatchNorm.convert_sync_batchnorm(model[0])
    gc.collect()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0))
    assert {id(one) for one in optimizer.param_groups[0]["params"]} == {
        id(one) for one in model.parameters()
    }


def test_a_saved_parameter_is_a_plain_one(tmp_path: Path) -> None:
    strategy = OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = nn.Linear(2, 1)
    torch.save([model.weight], tmp_path / "weight.pt")
    (loaded,) = torch.load(tmp_path / "weight.pt", weights_only=True)
    assert torch.equal(loaded, model.weight)
