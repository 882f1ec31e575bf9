"""The examples in the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stratagem

# An indented block after a line that ends in "::".
_EXAMPLE = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+)")


def examples() -> Iterator[tuple[str, str]]:
    for name in stratagem.__all__:
        documented = getattr(stratagem, name)
        if inspect.isclass(documented) or inspect.isfunction(documented):
            for block in _EXAMPLE.findall(inspect.getdoc(documented) or ""):
                yield name, textwrap.dedent(block)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.table = stratagem.nn.Embedding(2, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(features)
        return output


def test_the_main_classes_have_examples() -> None:
    shown = {name for name, _ in examples()}
    optimizers = {"DistributedOptimizer", "HybridOptimizer", "LocalSteps"}
    assert shown == {*optimizers, "ParameterServerStrategy"}


@pytest.mark.parametrize(("name", "code"), list(examples()))
def test_an_example_trains_its_model(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    batch = torch.ones(3, 2)
    surroundings: dict[str, Any] = {
        "__name__": "__main__",
        "torch": torch,
        "Model": Model,
        "batch": batch,
        "batches": [batch, batch],
        **{shown: getattr(stratagem, shown) for shown in stratagem.__all__},
    }
    surroundings["strategy"] = stratagem.ParameterServerStrategy()
    torch.manual_seed(0)
    before = Model()
    torch.manual_seed(0)
    exec(code, surroundings)
    surroundings["strategy"].refresh()
    after = surroundings["model"]
    assert not torch.equal(after.layer.weight, before.layer.weight)
