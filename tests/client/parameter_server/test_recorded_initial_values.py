"""Parameters that get no memory, because servers make their initial values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running

ROWS, COLUMNS = 400, 50


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


class Table(nn.Module):
    """A table that a user wrote."""

    def __init__(self, *init: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(ROWS, COLUMNS))
        for one in init:
            one(self.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight)


INITS: dict[str, Callable[[torch.Tensor], object]] = {
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "constant": lambda weight: nn.init.constant_(weight, 0.25),
    "normal": lambda weight: nn.init.normal_(weight, 2.0, 0.5),
    "uniform": lambda weight: nn.init.uniform_(weight, -0.5, 0.25),
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, a=5**0.5),
    "kaiming_normal": nn.init.kaiming_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "method": lambda weight: weight.data.uniform_(-1, 1),
    "zeros_like": lambda weight: weight.data.zero_(),
}


@pytest.mark.parametrize("name", INITS)
def test_rows_are_distributed_as_torch_would_have_them(
    strategy: ParameterServerStrategy, name: str
) -> None:
    torch.manual_seed(3)
    with strategy.scope(meta_above=1000):
        table = Table(INITS[name])
    found = moments(table(torch.arange(ROWS)))
    expected = moments(Table(INITS[name]).weight)
    assert found == pytest.approx(expected, rel=0.3, abs=0.4 * expected[1])


def moments(values: torch.Tensor) -> list[float]:
    of = values.detach()
    return [one.item() for one in (of.mean(), of.std(), of.min(), of.max())]


def test_the_last_initialisation_counts(strategy: ParameterServerStrategy) -> None:
    with strategy.scope(meta_above=1000):
        table = nn.Embedding(ROWS, COLUMNS, padding_idx=3)
        nn.init.ones_(table.weight)
        with torch.no_grad():
            table.weight[-1].fill_(0)
    sums = table(torch.tensor([0, 3, ROWS - 1])).sum(1)
    assert sums.tolist() == [COLUMNS, COLUMNS, 0]


def test_padding_starts_as_zeros(strategy: ParameterServerStrategy) -> None:
    with strategy.scope(meta_above=1000):
        table = nn.Embedding(ROWS, COLUMNS, padding_idx=0)
    zero = (table(torch.arange(ROWS)) == 0).all(1).nonzero().flatten()
    assert zero.tolist() == [0]


def test_torchs_seed_decides(strategy: ParameterServerStrategy) -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        # Of one name, on servers of their own.
        with running() as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                table = stratagem.nn.Embedding(ROWS, 2)
            found.append(table(torch.arange(ROWS)).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


UNREPEATABLE: dict[str, Callable[[torch.Tensor], object]] = {
    "copy_": lambda weight: weight.data.copy_(torch.ones(ROWS, COLUMNS)),
    "how it is initialised": nn.init.trunc_normal_,
    "aten.mul_": lambda weight: nn.init.normal_(weight).data.mul_(2.0),
    "fill_": lambda weight: weight.data[:, 0].fill_(1.0),
    "zero_": lambda weight: (weight.data[0].zero_(), weight.data[1].zero_()),
}


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_what_servers_cannot_repeat_is_refused(
    strategy: ParameterServerStrategy, name: str
) -> None:
    wanted = f"parameter 'weight' of Table.*{name}.*meta_above"
    scope = strategy.scope(meta_above=1000)
    with pytest.raises(InvalidArgumentError, match=wanted), scope:
        table = Table(UNREPEATABLE[name])
        assert table.weight.is_meta


def test_layers_that_need_all_of_a_parameter_have_it_here(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope(meta_above=1000):
        layer = nn.Linear(COLUMNS, 20)
    assert type(layer.weight) is nn.Parameter
    bound = COLUMNS**-0.5
    assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert strategy.run(layer, args=(torch.ones(COLUMNS),)).shape == (20,)


def test_what_is_not_part_of_a_module_gets_memory(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope(meta_above=1000):
        assert not torch.empty(ROWS, COLUMNS).is_meta
        assert strategy.run(lambda: torch.empty(ROWS, COLUMNS)).device.type == "cpu"


def test_a_value_that_was_computed_is_sent(strategy: ParameterServerStrategy) -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(ROWS, COLUMNS) * 0.1)

    with strategy.scope(meta_above=1000):
        module = Computed()
    assert module.weight.std().item() == pytest.approx(0.1, rel=0.05)
