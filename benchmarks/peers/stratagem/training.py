"""Servers, and this process as the only one that trains with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_deploy import LocalCluster


@contextmanager
def alone(ps: int, consistency: str = "async") -> Iterator[ParameterServerStrategy]:
    """The strategy of a program that has so many servers to itself."""
    torch.set_num_threads(1)
    with (
        LocalCluster(ps=ps, workers=1, processes=True) as cluster,
        ParameterServerStrategy(
            _as_chief(cluster.cluster_resolver),
            consistency=consistency,
            token=cluster.cluster_resolver.cluster_token,
        ) as strategy,
    ):
        yield strategy


def _as_chief(resolver: ClusterResolver) -> ClusterResolver:
    servers = resolver.cluster_spec().as_dict()["ps"]
    cluster = ClusterSpec({"ps": servers, "chief": ["this.invalid:1"]})
    return SimpleClusterResolver(cluster, task_type="chief", task_id=0)
