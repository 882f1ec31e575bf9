"""Device filters, and which parameter servers they leave each task of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stratagem._cluster.tasks import Membership
from stratagem._core.device_names import DeviceName
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1 import cluster_pb2 as pb
from stratagem_proto.v1.cluster_pb2 import ConfigProto
from stratagem_proto.v1.session_pb2 import FilteredTask, FilteredTasks, Task


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

    def hiding(self, device: str) -> Iterator[FilteredTask]:
        """Yield the tasks from which a device of a server is hidden, with their filters."""
        for job, tasks in self._filters.items():
            for index, filters in tasks.items():
                if TaskView(f"/job:{job}/task:{index}", (filters,)).hiding(device):
                    yield FilteredTask(task=Task(job=job, index=index), device_filters=filters)

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


@dataclass(frozen=True)
class TaskView:
    """What a task sees of its cluster. Spec: FIL-2, FIL-3.

    A remote device has to match one partial device name of each list in `filters` that is not
    empty.
    """

    task: str
    filters: tuple[Sequence[str], ...]

    def hiding(self, device: str) -> Sequence[str]:
        """Return the list of filters that hides a device, an empty one if none does."""
        name = DeviceName.parse(device)
        if _matches(self.task, name):
            return ()
        for names in self.filters:
            if names and not any(_matches(each, name) for each in names):
                return names
        return ()


def _matches(partial: str, name: DeviceName) -> bool:
    return DeviceName.parse(partial).completed_by(name) == name


@dataclass(frozen=True)
class VisibleServers:
    """The parameter servers as one task sees them.

    Attributes:
        used: Those on which variables are placed, in turn: the task that creates them sees them.
        hidden: Those that this task may not call, with the reason.
        filtered: The tasks that each server has to refuse, if this task creates variables and
            there are filters of the cluster.
    """

    used: tuple[int, ...]
    hidden: Mapping[int, str] = field(default_factory=dict)
    filtered: Mapping[int, FilteredTasks] = field(default_factory=dict)

    @cached_property
    def called(self) -> tuple[int, ...]:
        """The servers that are used, and not hidden from this task."""
        return tuple(task for task in self.used if task not in self.hidden)


def visible_servers(
    member: Membership, filters: ClusterDeviceFilters | None, session: ConfigProto | None
) -> VisibleServers:
    """Return what filters leave of the parameter servers to a task.

    There are filters of each task of the cluster, and those of the session that every task opens.

    Raises:
        InvalidArgumentError: A filter is no partial device name, or the task that creates variables
            sees no server.
    """
    names = [f"/job:ps/replica:0/task:{task}" for task in range(member.num_servers)]
    if member.task_type == "ps":
        reason = (
            f"{member.name} is a parameter server and runs no strategy; start it by "
            "`stratagem ps` or `stratagem.Server`"
        )
        servers = tuple(range(len(names)))
        return VisibleServers(servers, dict.fromkeys(servers, reason))
    creator, own = (
        _view(*task, filters, session)
        for task in (member.creator, (member.task_type, member.task_id))
    )
    used = tuple(i for i, name in enumerate(names) if not creator.hiding(name))
    if not used:
        raise InvalidArgumentError(
            f"the device filters {list(creator.hiding(names[0]))} hide all parameter "
            f"servers from {creator.task}, which creates variables; add '/job:ps'"
        )
    hidden = {
        i: f"/job:ps/task:{i} is invisible to {own.task}: its device filters "
        f"{list(by)} hide it; add '/job:ps/task:{i}' to them"
        for i, name in enumerate(names)
        if (by := own.hiding(name))
    }
    if filters is None or not member.creates:
        return VisibleServers(used, hidden)
    filtered = {i: FilteredTasks(tasks=filters.hiding(name)) for i, name in enumerate(names)}
    return VisibleServers(used, hidden, filtered)


def _view(
    job: str, index: int, filters: ClusterDeviceFilters | None, session: ConfigProto | None
) -> TaskView:
    of_cluster = filters.of(job, index) if filters else ()
    of_session = tuple(session.device_filters) if session else ()
    return TaskView(f"/job:{job}/task:{index}", (of_cluster, of_session))
