"""Which of the workers that train together this process is, and what it reads."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset

from stratagem._cluster.roles import id_in_cluster, worker_count
from stratagem._parameter_server.strategy import ParameterServerStrategy


class Place(NamedTuple):
    """A worker's place among those that train together.

    Attributes:
        worker: The number of this worker; that of the chief is 0.
        workers: How many workers there are.
    """

    worker: int
    workers: int

    @classmethod
    def of(cls, strategy: ParameterServerStrategy) -> Place:
        """Return the place of this process; alone where there is no cluster."""
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec()
        if not cluster:
            return cls(0, 1)
        task = resolver.task_type, resolver.task_id
        return cls(id_in_cluster(cluster, *task), worker_count(cluster, task[0]))


def part(strategy: ParameterServerStrategy, dataset: Dataset[Any]) -> Subset[Any]:
    """Return what this worker reads of a dataset that all workers have.

    It is each n-th example of n workers'. All parts are equally large, so that all workers take as
    many steps: up to n - 1 examples at the end are in no part.

    Args:
        strategy: The strategy.
        dataset: A dataset with a length, the same in all workers.
    """
    place = Place.of(strategy)
    length = len(dataset)  # type: ignore[arg-type]
    return Subset(dataset, range(place.worker, length - length % place.workers, place.workers))
