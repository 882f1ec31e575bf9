"""Accelerate's loop with one worker, which gives what Accelerate gives alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stratagem import ParameterServerStrategy
from tests.client.clusters import running
from tests.client.parameter_server.loops import in_bytes, networks, noise

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster, cluster.strategy() as strategy:
        yield strategy


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Accelerate keeps what the first of its objects was made with."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def on_servers(strategy: ParameterServerStrategy) -> Any:
    from stratagem.frameworks.accelerate import Accelerator

    return Accelerator(strategy, cpu=True, gradient_accumulation_steps=2)


def alone() -> Any:
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)


class Training:
    """A model in training, as the documentation of Accelerate has it."""

    def __init__(self, accelerator: Any, optimizer_first: bool = False) -> None:
        network = networks()[0]
        adam = torch.optim.Adam(network.parameters(), lr=0.02)
        loader: Any = DataLoader(TensorDataset(noise(0, 12, 4)), 2)
        self.accelerator = accelerator
        if optimizer_first:
            self.adam, self.network = accelerator.prepare(adam, network)
            self.loader = accelerator.prepare(loader)
        else:
            self.network, self.adam, self.loader = accelerator.prepare(network, adam, loader)

    def epoch(self) -> list[bytes]:
        for (features,) in self.loader:
            with self.accelerator.accumulate(self.network):
                self.accelerator.backward(self.network(features).square().mean())
                self.accelerator.clip_grad_norm_(self.network.parameters(), 1.0)
                self.adam.step()
                self.adam.zero_grad()
        return in_bytes([self.accelerator.unwrap_model(self.network)])


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_one_worker_ends_with_the_bytes_of_accelerate(
    strategy: ParameterServerStrategy, optimizer_first: bool
) -> None:
    expected = Training(alone()).epoch()
    assert Training(on_servers(strategy), optimizer_first).epoch() == expected


def test_a_saved_state_goes_on_on_servers(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    first = Training(alone())
    first.epoch()
    first.accelerator.save_state(tmp_path / "plain")
    expected = first.epoch()
    ours = Training(on_servers(strategy))
    ours.accelerator.load_state(tmp_path / "plain")
    ours.accelerator.save_state(tmp_path / "again")
    assert ours.epoch() == expected
    ours.accelerator.load_state(tmp_path / "again")
    assert ours.epoch() == expected


def test_bfloat16_needs_no_scaler(strategy: ParameterServerStrategy) -> None:
    from stratagem.frameworks.accelerate import Accelerator

    before = in_bytes([networks()[0]])
    training = Training(Accelerator(strategy, cpu=True, mixed_precision="bf16"))
    assert training.epoch() != before
    assert all(p.dtype is torch.float32 for p in training.network.parameters())


def test_an_optimizer_of_a_model_that_was_not_prepared_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    accelerator, module = on_servers(strategy), nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"2 of the 2 parameters of SGD"):
        accelerator.prepare(torch.optim.SGD(module.parameters(), lr=0.1))
