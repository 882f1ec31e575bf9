"""Numbers for TensorBoard, read by TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stratagem
from stratagem.tensorboard import ScalarWriter
from stratagem_deploy import LocalCluster


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events: Any = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def train(resolver: Any, folder: Path) -> None:
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = stratagem.DistributedOptimizer(sgd)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    with ScalarWriter(strategy, folder / str(resolver.task_id), every=0.0) as scalars:
        for number in range(3):
            scalars.write(number, {"loss": strategy.run(step)})
    strategy.barrier("trained")


def test_the_chief_writes_its_numbers_and_how_the_workers_fare(tmp_path: Path) -> None:
    with LocalCluster(ps=1, workers=2) as cluster:
        cluster.run(train, tmp_path)
    found = written(tmp_path / "0")
    assert [step for step, _ in found["loss"]] == [0, 1, 2]
    assert found["loss"][0][1] > found["loss"][2][1]
    assert found["stratagem/SGD/worker:0/steps"][-1][1] >= 2
    assert found["stratagem/SGD/worker:0/dropped"][-1][1] == 0
    assert found["stratagem/steps_per_second"][0][1] > 0
    assert found["stratagem/received_bytes_per_second"][0][1] > 0
    assert min(value for _, value in found["stratagem/SGD/worker:0/staleness"]) >= 0
    assert not (tmp_path / "1").exists()


def test_any_strategy_has_the_numbers_of_its_program_written(tmp_path: Path) -> None:
    with ScalarWriter(stratagem.get_strategy(), tmp_path, every=0.0) as scalars:
        scalars.write(7, {"accuracy": torch.tensor(0.5)})
    assert written(tmp_path) == {"accuracy": [(7, 0.5)]}


def test_without_tensorboard_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'stratagem\[tensorboard\]'"):
        ScalarWriter(stratagem.get_strategy(), tmp_path)
