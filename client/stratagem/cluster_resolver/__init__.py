"""Where a process learns its cluster, and which task of it it is."""

from __future__ import annotations

from stratagem.cluster_resolver._kubernetes import (
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
)
from stratagem.cluster_resolver._resolvers import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionResolver,
)
from stratagem.cluster_resolver._slurm import SlurmClusterResolver

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]


def _show_public_names() -> None:
    """Let tracebacks, `help` and pickles say `stratagem.cluster_resolver.X`."""
    for name in __all__:
        globals()[name].__module__ = __name__


_show_public_names()
