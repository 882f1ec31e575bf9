"""The custom training loop beside plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import typer
from typer.testing import CliRunner

from examples import custom_training_loop as example

EPOCHS = 3


@pytest.fixture(scope="module")
def plain() -> list[float]:
    """Test errors of the same training without a strategy."""
    torch.manual_seed(0)
    training, test = example.patients()
    model = example.network()
    optimizer = torch.optim.Adam(model.parameters(), example.RATE)
    step = example.step_of(model, optimizer)
    loader = example.shuffled(training, seed=0)
    measured, target = test.tensors
    errors = []
    for _ in range(EPOCHS):
        for batch in loader:
            step(*batch)
        errors.append(float((model(measured).detach() - target).square().mean()))
    return errors


@pytest.mark.parametrize(("replicas", "parts"), [(2, [25, 25]), (3, [17, 17, 16])])
def test_replicas_learn_what_plain_torch_learns(
    replicas: int, parts: list[int], plain: list[float]
) -> None:
    history = example.train(example.central(replicas), EPOCHS)
    assert [epoch.test for epoch in history] == pytest.approx(plain, rel=1e-4)
    assert plain[-1] < 0.6
    assert history[-1].training < history[0].training
    for epoch in history:
        assert epoch.low < epoch.test < epoch.high
        assert epoch.parts == parts


def test_each_replica_draws_by_its_own_generator() -> None:
    strategy = example.central(2)
    means = example.resampled_means(strategy, torch.arange(100.0))
    first, second = means.chunk(2)
    assert len(means) == example.RESAMPLES
    assert not torch.equal(first, second)


@pytest.fixture
def all_threads_again() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("all_threads_again")
def test_the_command_shows_an_epoch_in_each_row() -> None:
    app = typer.Typer()
    app.command()(example.main)
    result = CliRunner().invoke(app, ["--replicas", "4", "--epochs", "2"])
    assert result.exit_code == 0
    rows = [line.split("│") for line in result.output.splitlines() if "│" in line]
    assert [row[1].strip() for row in rows] == ["1", "2"]
    assert "[13, 13, 13, 11]" in result.output
