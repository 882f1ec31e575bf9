"""Strategies of clusters that are described alone."""

from __future__ import annotations

from typing import Any

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver


def strategy_of(
    cluster: Any, job: str | None = None, task: int | None = None, **settings: Any
) -> ParameterServerStrategy:
    resolver = SimpleClusterResolver(ClusterSpec(cluster), task_type=job, task_id=task)
    return ParameterServerStrategy(resolver, **settings)
