"""Reserving the resources of all tasks of a cluster, which Ray grants together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stratagem_deploy.on_ray.library import load
from stratagem_proto.errors import ResourceExhaustedError

Resources = Mapping[str, float]
"""Amounts by the names that Ray has for them, such as "CPU" and "GPU"."""


@dataclass(frozen=True)
class RayReservation:
    """Reserved resources for actors, one in each bundle.

    Attributes:
        group: The placement group.
        bundles: What each actor may use.
    """

    group: Any
    bundles: Sequence[Resources]

    def options(self, bundle: int) -> dict[str, Any]:
        """Return the options with which an actor starts in a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = dict(self.bundles[bundle])
        return {
            "num_cpus": others.pop("CPU", 0),
            "num_gpus": others.pop("GPU", 0),
            "memory": others.pop("memory", None),
            "resources": others,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, bundle),
        }


@contextmanager
def reserved(
    bundles: Sequence[Resources], strategy: str, timeout: float
) -> Iterator[RayReservation]:
    """Reserve resources for the block; actors that still run at its end are ended.

    Args:
        bundles: How much for each actor.
        strategy: How Ray spreads them over nodes, for instance "PACK".
        timeout: How long to wait for it, in seconds.

    Raises:
        ResourceExhaustedError: Ray has not as much, or others use it.
    """
    util = load().util
    group = util.placement_group([dict(bundle) for bundle in bundles], strategy)
    try:
        if not group.wait(timeout):
            raise _lacking(bundles, strategy, timeout)
        yield RayReservation(group, bundles)
    finally:
        util.remove_placement_group(group)


def _lacking(bundles: Sequence[Resources], strategy: str, timeout: float) -> ResourceExhaustedError:
    ray = load()
    names = sorted({name for bundle in bundles for name in bundle})
    asked = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in names}
    there, free = ray.cluster_resources(), ray.available_resources()
    amounts = ", ".join(
        f"{name} {asked[name]:g} of {there.get(name, 0):g}, {free.get(name, 0):g} free"
        for name in names
    )
    return ResourceExhaustedError(
        f"Ray had no room for {len(bundles)} tasks within {timeout:g} s, placed by "
        f"{strategy}: asked for {amounts}. Ask for less by ps_resources and "
        "worker_resources, end what else runs, or add nodes"
    )
