"""The functions of torch.nn.init, on parameters that get no memory."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional, init

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running
from tests.client.parameter_server.initial_writes import (
    ALL,
    COLUMNS,
    ROWS,
    Table,
    assert_as_torch_has_them,
    embedding,
    rows_on_servers,
)


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


FILLS = {"constant_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "trunc_normal_"}
FILLS |= {"uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"}

INITIALISERS = sorted(
    name
    for name, function in vars(init).items()
    if inspect.isfunction(function)
    and function.__module__ == init.__name__
    and not name.startswith("_")
    and name != "calculate_gain"
)


def initialised(name: str, weight: nn.Parameter) -> None:
    """Call a function of torch.nn.init, with a number for whatever it needs besides a tensor."""
    function = getattr(init, name)
    described = inspect.signature(getattr(init, f"{name}_", function)).parameters.values()
    needed = [one for one in described if one.default is one.empty]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names without a "_"
        function(weight, *[0.125] * (len(needed) - 1))


@pytest.mark.parametrize("name", INITIALISERS)
def test_each_function_of_torchs_is_recorded_or_refused_by_name(
    strategy: ParameterServerStrategy, name: str
) -> None:
    name_in_errors = f"torch.nn.init.{name.removesuffix('_')}_"

    def build() -> nn.Module:
        return embedding(lambda weight: initialised(name, weight))

    torch.manual_seed(3)
    try:
        expected = build()(ALL)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            rows_on_servers(strategy, build)
        return
    if name in FILLS or f"{name}_" in FILLS:
        assert_as_torch_has_them(rows_on_servers(strategy, build), expected)
    else:
        with pytest.raises(InvalidArgumentError, match=f"'weight' of Embedding.*{name_in_errors}"):
            rows_on_servers(strategy, build)


def test_functions_for_more_dimensions_are_refused_by_name(
    strategy: ParameterServerStrategy,
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'weight' of Table.*torch\.nn\.init\.dirac_"):
        rows_on_servers(strategy, lambda: Table(init.normal_, init.dirac_, shape=(9, 9, 9)))


def as_one_of_torchs(function: Callable[..., Any]) -> FunctionType:
    """A function as it would be if it stood in torch.nn.init."""
    return FunctionType(function.__code__, vars(init), function.__name__, function.__defaults__)


def future_(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.size(0) > 2:
        return tensor
    return tensor.fill_(1.0)


def trunc_normal_(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """As releases of torch before 2.13 have it."""
    with torch.no_grad():
        low = (1.0 + math.erf((a - mean) / std / 2**0.5)) / 2.0
        high = (1.0 + math.erf((b - mean) / std / 2**0.5)) / 2.0
        tensor.uniform_(2 * low - 1, 2 * high - 1, generator=generator)
        tensor.erfinv_()
        tensor.mul_(std * math.sqrt(2.0))
        tensor.add_(mean)
        tensor.clamp_(min=a, max=b)
        return tensor


def test_a_function_that_torch_may_get_is_refused_by_name(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "future_", as_one_of_torchs(future_), raising=False)
    with pytest.raises(InvalidArgumentError, match=r"by torch\.nn\.init\.future_"):
        rows_on_servers(strategy, lambda: embedding(init.future_))  # type: ignore[attr-defined]


def test_truncated_normal_is_recorded_however_torch_draws_it(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "trunc_normal_", as_one_of_torchs(trunc_normal_))

    def draw(weight: nn.Parameter) -> None:
        init.trunc_normal_(weight, 0.5, 0.25, a=0.25, b=2.0)

    found = rows_on_servers(strategy, lambda: embedding(draw))
    assert_as_torch_has_them(found, embedding(draw)(ALL))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_modules_of_torch_reset_their_parameters(
    strategy: ParameterServerStrategy, kind: type[nn.Embedding] | type[nn.EmbeddingBag]
) -> None:
    for module in (kind, getattr(stratagem.nn, kind.__name__)):

        def build(module: Any = module) -> Any:
            made = module(ROWS, COLUMNS, padding_idx=3)
            init.ones_(made.weight)
            made.reset_parameters()
            return made

        with strategy.scope(meta_above=1000):
            made = build()
        found = functional.embedding(ALL, made.weight).detach()
        assert_as_torch_has_them(found, build().weight)
