"""Clusters that programs start, and the `stratagem` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_deploy.clusters.local_cluster import LocalCluster
    from stratagem_deploy.on_ray.cluster import RayCluster

__all__ = ["LocalCluster", "RayCluster"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the command need not wait for PyTorch.
    if name == "LocalCluster":
        from stratagem_deploy.clusters.local_cluster import LocalCluster

        return LocalCluster
    if name == "RayCluster":
        from stratagem_deploy.on_ray.cluster import RayCluster

        return RayCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
