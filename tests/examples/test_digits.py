"""The network on digits, shortened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import typer
from typer.testing import CliRunner

from examples import digits

EPOCHS = 4


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """As in the example: several would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain(one_thread: None) -> float:
    return digits.train_plainly(EPOCHS, seed=0)


FULL = pytest.mark.full("one way to have replicas is trained, and each is tested elsewhere")
FIRST, *OTHERS = digits.STRATEGIES


@pytest.mark.full("each strategy trains to the bytes of torch elsewhere")
@pytest.mark.parametrize(
    "way", [FIRST, *(pytest.param(way, marks=FULL) for way in OTHERS)], ids=str
)
def test_every_strategy_reaches_the_accuracy_of_plain_torch(way: digits.Way, plain: float) -> None:
    """But for 1 of 100 images: replicas normalise by smaller batches."""
    accuracy = digits.train(digits.STRATEGIES[way](), EPOCHS, seed=0)
    assert plain > 0.97
    assert accuracy > plain - 0.01


def test_the_command_shows_a_table_of_what_it_was_asked_for() -> None:
    app = typer.Typer()
    app.command()(digits.main)
    asked = ["--strategy", "plain", "--strategy", "mirrored-2", "--epochs", "1"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0
    rows = [line for line in result.output.splitlines() if "│" in line]
    names = {line.split("│")[1].strip() for line in rows}
    assert names == {"plain", "mirrored-2"}
