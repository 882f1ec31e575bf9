"""Which remote devices each task of a cluster sees."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_proto.errors import InvalidTypeError
from stratagem_proto.v1 import cluster_pb2 as pb


class ClusterDeviceFilters:
    """The device filters of the tasks of a cluster.

    A filter is a partial device name such as "/job:ps" or "/job:ps/task:1". A task for which none
    are set sees every device, and always its own. Spec: FIL-1, FIL-3.
    """

    __module__ = "stratagem"

    def __init__(self) -> None:
        self._filters: dict[str, dict[int, tuple[str, ...]]] = {}

    def set_device_filters(
        self, job_name: str, task_index: int, device_filters: Sequence[str]
    ) -> None:
        """Set the filters of one task in place of earlier ones.

        Raises:
            InvalidTypeError: A filter is not a string.
        """
        filters = tuple(device_filters)
        if isinstance(device_filters, str) or not all(
            isinstance(filter_, str) for filter_ in filters
        ):
            raise InvalidTypeError(
                f"device_filters of /job:{job_name}/task:{task_index} is a list of "
                f"strings such as ['/job:ps'], not {device_filters!r}"
            )
        self._filters.setdefault(job_name, {})[task_index] = filters

    def of(self, job_name: str, task_index: int) -> tuple[str, ...]:
        """Return the filters of one task; an empty tuple if it sees everything."""
        return self._filters.get(job_name, {}).get(task_index, ())

    def as_message(self) -> pb.ClusterDeviceFilters:
        """Return the filters as a message, for instance for a `ServerDef`."""
        return pb.ClusterDeviceFilters(
            jobs=[
                pb.JobDeviceFilters(
                    name=job,
                    tasks={
                        index: pb.TaskDeviceFilters(device_filters=filters)
                        for index, filters in tasks.items()
                    },
                )
                for job, tasks in self._filters.items()
            ]
        )
