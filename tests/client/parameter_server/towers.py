"""Models of one class, which are told apart by their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

import stratagem
from stratagem import ParameterServerStrategy, Strategy
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import Cluster
from tests.conftest import TOKEN

VALUES = {"user": 1.0, "item": 2.0, "shop": 3.0}


class Tower(nn.Module):
    """Has one value in all parameters, by which it is told from others."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.constant_(parameter, value)

    @property
    def value(self) -> float:
        return self.fc.weight[0, 0].item()


@contextmanager
def evaluating(cluster: Cluster, **settings: Any) -> Iterator[ParameterServerStrategy]:
    """The strategy of an evaluator."""
    spec = stratagem.ClusterSpec({**cluster.spec.as_dict(), "evaluator": ["e:1"]})
    resolver = SimpleClusterResolver(spec, task_type="evaluator", task_id=0)
    with ParameterServerStrategy(resolver, token=TOKEN, **settings) as strategy:
        yield strategy


def made(strategy: Strategy, *values: float) -> list[Tower]:
    """Towers that nothing names, made in one scope."""
    with strategy.scope():
        return [Tower(value) for value in values]
