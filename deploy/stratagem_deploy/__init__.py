"""Clusters of local processes, and the `stratagem` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_deploy.local_cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the command need not wait for PyTorch.
    if name == "LocalCluster":
        from stratagem_deploy.local_cluster import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
