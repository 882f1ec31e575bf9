"""What modules and optimizers have, saved and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stratagem import (
    DistributedOptimizer,
    PerReplica,
    Strategy,
    Variable,
)
from tests.spec.checkpoints.checkpoints import STRATEGIES

pytestmark = pytest.mark.usefixtures("four_cpus")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


class Training:
    """A model, a variable and Adam under one strategy."""

    def __init__(self, strategy: Strategy) -> None:
        torch.manual_seed(0)
        self.strategy = strategy
        with strategy.scope():
            self.model = network()
            self.rounds = Variable(0, name="rounds")
        adam = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.optimizer = DistributedOptimizer(adam)

    def step(self, rows: torch.Tensor) -> None:
        def fn(mine: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            self.model(mine).square().mean().backward()
            self.optimizer.step()

        halves = rows.chunk(self.strategy.num_replicas_in_sync)
        self.strategy.run(fn, (PerReplica(halves),))
        self.rounds.assign_add(1)

    def values(self) -> dict[str, Any]:
        return {name: v.tolist() for name, v in self.strategy.state_dict().items()}


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.spec("VCK-1", "VCK-7", "VCK-8")
def test_training_goes_on_where_it_was_saved(target: str, later: bool, tmp_path: Path) -> None:
    """Parameters, buffers, variables and slots, made before or after it."""
    rows = torch.arange(16.0).reshape(8, 2)
    whole = Training(STRATEGIES[target]())
    whole.step(rows)
    whole.strategy.save(tmp_path / "half")
    half = whole.values()
    assert {"0.weight", "1.running_mean", "rounds", "0.weight/Adam/exp_avg"} < {*half}
    whole.step(rows)
    strategy = STRATEGIES[target]()
    if later:
        strategy.restore(tmp_path / "half")
    resumed = Training(strategy)
    if not later:
        resumed.step(-rows)
        strategy.restore(tmp_path / "half").assert_consumed()
    assert resumed.values() == half
    assert resumed.model.get_parameter("0.weight").tolist() == half["0.weight"]
    resumed.step(rows)
    assert resumed.values() == whole.values()


@pytest.mark.spec("VCK-7")
def test_a_model_is_saved_under_the_names_of_its_own_state(tmp_path: Path) -> None:
    """So that it loads where there is no strategy."""
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        model = network()
    strategy.save(tmp_path / "model.safetensors")
    plain = network()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    rows = torch.ones(3, 2)
    assert torch.equal(plain(rows), model(rows))


def test_restoring_a_first_state_forgets_that_of_optimizers() -> None:
    training = Training(STRATEGIES["mirrored"]())
    fresh = training.strategy.state_dict()
    training.step(torch.ones(4, 2))
    training.strategy.load_state_dict(fresh)
    assert set(training.strategy.state_dict()) == set(fresh)
    assert training.optimizer.state_dict()["state"] == {}


def test_equal_names_are_told_apart() -> None:
    strategy = STRATEGIES["one"]()
    with strategy.scope():
        kept = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
        with strategy.scope(name="ignored when nested"):
            pass
    with strategy.scope(name="head"):
        head = nn.BatchNorm1d(1)
    kept[1].running_mean.fill_(2.0)  # type: ignore[union-attr]
    head.running_mean.fill_(3.0)  # type: ignore[union-attr]
    state = strategy.state_dict()
    means = {name: v.item() for name, v in state.items() if "running_mean" in name}
    assert means == {
        "running_mean": 0.0,
        "running_mean_1": 2.0,
        "head/running_mean": 3.0,
    }


def test_what_the_user_wrote_into_a_parameter_is_saved() -> None:
    strategy = STRATEGIES["central"]()
    with strategy.scope():
        model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(8.0)
    assert strategy.state_dict()["weight"] == 8.0
    with torch.no_grad():
        model.weight.fill_(9.0)
    strategy.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    assert model.weight == 1.0
    assert strategy.state_dict()["weight"] == 1.0
