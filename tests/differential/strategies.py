"""Strategies over logical CPUs, as scenarios use them."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library


def cpus(count: int) -> list[str]:
    """Return the names of the first logical CPUs."""
    return [f"CPU:{index}" for index in range(count)]


def mirrored(lib: Library, replicas: int = 2) -> Any:
    """Return a MirroredStrategy."""
    return lib.distribute.MirroredStrategy(cpus(replicas))


def central(lib: Library, replicas: int = 2) -> Any:
    """Return a CentralStorageStrategy with its variables on CPU:0."""
    return lib.distribute.CentralStorageStrategy(cpus(replicas), "CPU:0")


def one_device(lib: Library) -> Any:
    """Return a OneDeviceStrategy."""
    return lib.distribute.OneDeviceStrategy("CPU:0")


def both(lib: Library) -> list[Any]:
    """Return a strategy with copies of variables and one without, of two replicas."""
    return [mirrored(lib), central(lib)]


def all_kinds(lib: Library) -> list[Any]:
    """Return a strategy of each kind."""
    return [*both(lib), one_device(lib), lib.distribute.get_strategy()]


def replica_id(lib: Library) -> int:
    """Return the number of the running replica."""
    return int(lib.distribute.get_replica_context().replica_id_in_sync_group)


def per_replica(lib: Library, strategy: Any, values: list[Any]) -> Any:
    """Return values, the first for the first replica and so on."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )
