"""What of distributed values is for the cores of one host."""

from __future__ import annotations

from typing import Any

from stratagem._core.tensors.nests import map_leaves
from stratagem._core.values.distributed_values import DistributedValues


def share_of(nest: Any, cores: range) -> Any:
    """Return a nest with the components of some cores in place of those of all."""

    def of_cores(leaf: Any) -> Any:
        if not isinstance(leaf, DistributedValues):
            return leaf
        mine = [leaf.values[core] for core in cores]
        return mine[0] if len(mine) == 1 else type(leaf)(mine)

    return map_leaves(of_cores, nest)
