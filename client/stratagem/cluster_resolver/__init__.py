"""Where a process learns its cluster, and which task of it it is."""

from __future__ import annotations

from stratagem._cluster.pods import KubernetesExecutableLocation
from stratagem.cluster_resolver._base import ClusterResolver, SimpleClusterResolver
from stratagem.cluster_resolver._kubernetes import KubernetesClusterResolver
from stratagem.cluster_resolver._slurm import SlurmClusterResolver
from stratagem.cluster_resolver._tf_config import TFConfigClusterResolver
from stratagem.cluster_resolver._tpu import TPUClusterResolver
from stratagem.cluster_resolver._union import UnionResolver

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
