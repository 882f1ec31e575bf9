"""Functions that run on the workers of a cluster, scheduled from one program."""

from stratagem._coordinator.closure import RemoteValue, RemoteValueStatus
from stratagem._coordinator.coordinator import ClusterCoordinator
from stratagem._coordinator.per_worker import PerWorkerValues
from stratagem._coordinator.standby import stand_by
from stratagem._core.contexts import experimental_get_current_worker_index

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValues",
    "RemoteValue",
    "RemoteValueStatus",
    "experimental_get_current_worker_index",
    "stand_by",
]
