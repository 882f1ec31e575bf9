"""Modules of PyTorch Geometric whose embeddings are on servers, without memory here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running
from tests.distributions import assert_same

geometric = pytest.importorskip("torch_geometric.nn", reason="PyG is not installed")

pytestmark = pytest.mark.filterwarnings("default")

NODES, RELATIONS = 1000, 300
COLUMNS = 16
RELATED = torch.stack([torch.arange(NODES), torch.arange(NODES).flip(0)])


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


MODULES: dict[str, Callable[[], nn.Module]] = {
    "ComplEx": lambda: geometric.ComplEx(NODES, RELATIONS, COLUMNS),
    "DistMult": lambda: geometric.DistMult(NODES, RELATIONS, COLUMNS),
    "RotatE": lambda: geometric.RotatE(NODES, RELATIONS, COLUMNS),
    "TransE": lambda: geometric.TransE(NODES, RELATIONS, COLUMNS),
    "LightGCN": lambda: geometric.LightGCN(NODES, COLUMNS, num_layers=2),
    "MaskLabel": lambda: geometric.MaskLabel(NODES, COLUMNS),
    "MetaPath2Vec": lambda: geometric.MetaPath2Vec(
        {("film", "of", "film"): RELATED}, COLUMNS, [("film", "of", "film")] * 2, 2, 2
    ),
}


def again(name: str) -> Any:
    """A module whose parameters were reset after they had other values."""
    made: Any = MODULES[name]()
    for parameter in made.parameters():
        nn.init.constant_(parameter, 5.0)
    made.reset_parameters()
    return made


@pytest.mark.parametrize("name", MODULES)
def test_its_parameters_start_as_in_torch(strategy: ParameterServerStrategy, name: str) -> None:
    # The relations of TransE are normalised, which servers cannot repeat; they are few.
    above = NODES * COLUMNS * 4 - 1
    with strategy.scope(meta_above=above):
        ours = again(name)
    found, expected = dict(ours.named_parameters()), dict(again(name).named_parameters())
    assert found.keys() == expected.keys()
    for key, parameter in expected.items():
        every = torch.arange(len(parameter))
        assert_same(nn.functional.embedding(every, found[key]), parameter)


def test_what_it_normalises_needs_memory(strategy: ParameterServerStrategy) -> None:
    scope = strategy.scope(meta_above=1000)
    with pytest.raises(InvalidArgumentError, match=r"norm.*needs the elements.*\(300, 16\)"), scope:
        MODULES["TransE"]()
