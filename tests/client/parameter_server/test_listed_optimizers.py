"""Every optimizer that servers run trains a partitioned parameter as torch does.

Partitioning takes for granted that a rule computes each element from that element's own value,
gradient and state. A rule that looks at a whole tensor, as Adafactor looks at rows and columns,
LBFGS at dot products and Muon at singular values, fails here.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratagem import DistributedOptimizer, optim
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.programs.optimizers import OPTIMIZERS
from tests.client.clusters import running
from tests.nests import same_bytes
from tests.pages import ROOT
from tests.psserver.optimization import twins

STEPS = 12
ROWS, COLUMNS, SHARDS = 11, 5, 3

# These are tried with each optimizer that has them, or take blocks of memory and not elements.
FAST = {"foreach", "fused"}
FOREACH = pytest.mark.full("each optimizer is tried with two other settings")
DEFAULT = pytest.mark.full("its steps are those of torch with other settings")
CASES = [
    *(pytest.param(name, {}, marks=DEFAULT) for name in OPTIMIZERS),
    *((name, given) for name, given in twins.CASES.values() if given and not FAST & given.keys()),
    ("SparseAdam", {"betas": (0.8, 0.99)}),
    *(
        pytest.param(name, {"foreach": True}, marks=FOREACH)
        for name, rule in OPTIMIZERS.items()
        if "foreach" in inspect.signature(rule.cls).parameters
    ),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_a_listed_optimizer_trains_a_partitioned_parameter_as_torch_does(
    name: str, settings: Mapping[str, Any]
) -> None:
    torch.manual_seed(3)
    cls: Any = OPTIMIZERS[name].cls
    reference = nn.Embedding(ROWS, COLUMNS, sparse=name == "SparseAdam")
    with (
        running(num_servers=2) as cluster,
        cluster.strategy(variable_partitioner=FixedShardsPartitioner(SHARDS)) as strategy,
    ):
        with strategy.scope():
            model = copy.deepcopy(reference)
        assert len(strategy.extended.variable_placements()) == SHARDS
        optimizer = DistributedOptimizer(cls(model.parameters(), **settings))
        plain = cls(reference.parameters(), **settings)
        generator = torch.Generator().manual_seed(7)
        for _ in range(STEPS):
            ids = torch.randint(0, ROWS, (6,), generator=generator)
            step(reference, plain, ids)
            strategy.run(step, (model, optimizer, ids))
        assert same_bytes(model.state_dict(), reference.state_dict())
        assert same_bytes(optimizer.state_dict(), plain.state_dict())


def step(model: nn.Embedding, optimizer: Any, ids: Tensor) -> None:
    optimizer.zero_grad()
    model(ids).cos().sum().backward()
    optimizer.step()


def test_every_listed_optimizer_is_compared_with_a_local_loop() -> None:
    # SparseAdam has no dense steps; `test_row_steps.py` compares it.
    compared = {name for name, _ in twins.CASES.values()} | {"SparseAdam"}
    missing = OPTIMIZERS.keys() - compared
    assert not missing, f"add a case of {missing} to CASES in tests/psserver/optimization/twins.py"


def test_the_guide_names_every_listed_optimizer() -> None:
    page = ROOT / "docs" / "guide" / "optimizers.md"
    _, named, *_ = page.read_text(encoding="utf-8").split("\n\n")
    missing = {name for name in OPTIMIZERS if not re.search(rf"\b{name}\b", named)}
    assert not missing, f"name {missing} in the first paragraph of {page}"


def test_users_import_what_torch_does_not_have() -> None:
    ours = {name for name in OPTIMIZERS if not hasattr(torch.optim, name)}
    # Servers trace that one, as any that they do not know by name.
    traced = {"DelayedNesterov"}
    assert ours | traced == set(optim.__all__), "export these in client/stratagem/optim.py"
