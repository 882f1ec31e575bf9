"""Parameters that get no memory, because servers make their initial values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import init

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running
from tests.client.parameter_server.initial_writes import (
    ALL,
    COLUMNS,
    RECORDED,
    REFUSED,
    ROWS,
    Init,
    Table,
    assert_as_torch_has_them,
    embedding,
    rows_on_servers,
)
from tests.full import examples


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


@pytest.mark.parametrize("name", RECORDED)
def test_other_ways_to_fill_are_recorded(strategy: ParameterServerStrategy, name: str) -> None:
    torch.manual_seed(3)
    found = rows_on_servers(strategy, lambda: embedding(RECORDED[name]))
    assert_as_torch_has_them(found, embedding(RECORDED[name])(ALL))


def test_a_generator_decides_what_it_would_decide(strategy: ParameterServerStrategy) -> None:
    found = []
    for seed in (1, 1, 2):
        generator = torch.Generator().manual_seed(seed)
        # Of one name, on servers of their own.
        with running() as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                table = stratagem.nn.Embedding(ROWS, 2)
                init.trunc_normal_(table.weight, generator=generator)
            found.append(table(ALL).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_torchs_seed_decides() -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        # Of one name, on servers of their own.
        with running() as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                table = stratagem.nn.Embedding(ROWS, 2)
            found.append(table(ALL).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", REFUSED)
def test_what_servers_cannot_repeat_is_refused(
    strategy: ParameterServerStrategy, name: str
) -> None:
    operation, write = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=rf"Embedding.*{operation}|{operation}.*Embeddi"):
        rows_on_servers(strategy, lambda: embedding(write))


def test_what_nobody_has_initialised_is_refused(strategy: ParameterServerStrategy) -> None:
    wanted = "parameter 'weight' of Table.*how it is initialised; .*meta_above"
    with pytest.raises(InvalidArgumentError, match=wanted):
        rows_on_servers(strategy, Table)


# Sequences of all of these, with arguments of their own.


class Drawn(NamedTuple):
    """An operation, and whether a later one may rely on it to be recorded."""

    says: str
    write: Init
    is_fill: bool = True

    def __repr__(self) -> str:
        return self.says


NUMBERS = st.floats(-4.0, 4.0, width=32)
POSITIVE = st.floats(0.0625, 4.0, width=32)


@st.composite
def fills(draw: st.DrawFn) -> Drawn:
    low, size, mean, std = draw(NUMBERS), draw(POSITIVE), draw(NUMBERS), draw(POSITIVE)
    how = draw(st.sampled_from(["normal", "uniform", "truncated", "method", "constant", "scaled"]))
    says = f"{how}(low={low}, size={size}, mean={mean}, std={std})"
    writes: dict[str, Init] = {
        "normal": lambda weight: init.normal_(weight, mean, std),
        "uniform": lambda weight: init.uniform_(weight, low, low + size),
        # Torch takes minutes for a part of the distribution that is far from its mean.
        "truncated": lambda weight: init.trunc_normal_(weight, low, std, low - std, low + size),
        "method": lambda weight: weight.data.normal_(mean, std),
        "constant": lambda weight: weight.data.fill_(mean),
        "scaled": lambda weight: init.kaiming_uniform_(weight, a=std, mode="fan_out"),
    }
    return Drawn(says, writes[how])


OTHERS = [
    *(Drawn(name, write, name != "nothing") for name, write in RECORDED.items()),
    *(Drawn(name, write, False) for name, (_, write) in REFUSED.items()),
    *(Drawn(name, getattr(init, name), False) for name in ("orthogonal_", "eye_", "dirac_")),
    Drawn("sparse_", lambda weight: init.sparse_(weight, 0.5), False),
    Drawn("a row of zeros", lambda weight: weight.data[7].zero_(), False),
]


@pytest.mark.full("each way to fill is recorded or refused by itself")
@settings(max_examples=examples(40))
@given(drawn=st.lists(st.one_of(fills(), st.sampled_from(OTHERS)), min_size=1, max_size=4))
def test_a_sequence_ends_as_in_torch_or_is_refused(
    strategy: ParameterServerStrategy, drawn: list[Drawn]
) -> None:
    writes = [one.write for one in drawn]
    torch.manual_seed(3)
    try:
        expected = embedding(*writes)(ALL)
    except ValueError:
        return  # torch has no such function for two dimensions
    try:
        found = rows_on_servers(strategy, lambda: embedding(*writes))
    except InvalidArgumentError as error:
        assert "Embedding" in str(error)
        assert not all(one.is_fill for one in drawn), "each of them can be recorded"
        return
    assert_as_torch_has_them(found, expected)


def test_the_last_initialisation_counts(strategy: ParameterServerStrategy) -> None:
    with strategy.scope(meta_above=1000):
        table = nn.Embedding(ROWS, COLUMNS, padding_idx=3)
        init.orthogonal_(table.weight)
        init.ones_(table.weight)
        with torch.no_grad():
            table.weight[-1].fill_(0)
    sums = table(torch.tensor([0, 3, ROWS - 1])).sum(1)
    assert sums.tolist() == [COLUMNS, COLUMNS, 0]


# What else has no memory, or has some.


def test_tensors_that_share_memory_cannot_become_two_parameters(
    strategy: ParameterServerStrategy,
) -> None:
    class Twice(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.empty(ROWS, COLUMNS).fill_(1.0))
            self.other = nn.Parameter(self.one.data[:rows])

    wanted = "'other' of Twice.*by sharing memory with parameter 'one' of Twice"
    for rows in (3, ROWS):
        with pytest.raises(InvalidArgumentError, match=wanted):
            rows_on_servers(strategy, partial(Twice, rows))


def test_a_part_of_a_tensor_cannot_become_a_parameter(strategy: ParameterServerStrategy) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(ROWS, COLUMNS).normal_()[5:])

    with pytest.raises(InvalidArgumentError, match=r"'weight' of Part.*by taking a part of"):
        rows_on_servers(strategy, Part)


def test_what_shared_memory_with_a_parameter_is_of_no_use_any_more(
    strategy: ParameterServerStrategy,
) -> None:
    kept = []
    rows_on_servers(strategy, lambda: embedding(lambda weight: kept.append(weight.data)))
    for use in (torch.Tensor.zero_, torch.sum):
        with pytest.raises(InvalidArgumentError, match="became those of parameter 'weight' of Emb"):
            use(kept[0])


def test_buffers_get_memory(strategy: ParameterServerStrategy) -> None:
    class WithBuffer(nn.Module):
        seen: torch.Tensor

        def __init__(self, fill: Callable[[torch.Tensor], object]) -> None:
            super().__init__()
            self.register_buffer("seen", torch.empty(ROWS, COLUMNS))
            fill(self.seen)
            self.weight = nn.Parameter(torch.zeros(3))

    with strategy.scope(meta_above=1000):
        module = WithBuffer(lambda seen: seen.fill_(3.0))
    assert torch.equal(module.seen, torch.full((ROWS, COLUMNS), 3.0))
    with pytest.raises(InvalidArgumentError, match=r"buffer 'seen' of WithBuffer.*mul_"):
        rows_on_servers(strategy, lambda: WithBuffer(lambda seen: seen.fill_(3.0).mul_(2.0)))


def test_layers_that_need_all_of_a_parameter_have_it_here(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope(meta_above=1000):
        layer, drawn = nn.Linear(COLUMNS, 20), nn.Linear(ROWS, COLUMNS)
        init.trunc_normal_(drawn.weight, std=0.5, generator=torch.Generator().manual_seed(5))
    assert type(layer.weight) is nn.Parameter
    bound = COLUMNS**-0.5
    assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert strategy.run(layer, args=(torch.ones(COLUMNS),)).shape == (20,)
    expected = torch.empty(COLUMNS, ROWS)
    init.trunc_normal_(expected, std=0.5, generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn.weight, expected)


def test_what_is_not_part_of_a_module_gets_memory(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope(meta_above=1000):
        assert torch.empty(ROWS, COLUMNS).data_ptr()
        assert strategy.run(lambda: torch.empty(ROWS, COLUMNS)).data_ptr()


def test_a_value_that_was_computed_is_sent(strategy: ParameterServerStrategy) -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(ROWS, COLUMNS) * 0.1)

    with strategy.scope(meta_above=1000):
        module = Computed()
    assert module.weight.std().item() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("write", [nn.init.normal_, nn.init.orthogonal_, lambda w: w.data.zero_()])
def test_a_large_table_says_where_it_is_initialised_once_its_scope_has_closed(
    strategy: ParameterServerStrategy, write: Callable[[torch.Tensor], object]
) -> None:
    with strategy.scope(meta_above=1000):
        table = nn.Embedding(ROWS, COLUMNS)
    before = table(ALL).detach()
    with pytest.raises(InvalidArgumentError, match=r"initialise it, do so in strategy.scope\(\)"):
        write(table.weight)
    assert torch.equal(table(ALL).detach(), before)
