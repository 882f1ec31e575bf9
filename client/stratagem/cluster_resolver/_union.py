"""The resolver of a cluster that several others describe in parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from stratagem._cluster.spec import ClusterSpec, Tasks
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem_proto.errors import DuplicateTaskError, InvalidArgumentError, InvalidTypeError


class UnionResolver(ClusterResolver):
    """A resolver that unites the clusters of others.

    Args:
        *args: The resolvers; the first one says what the arguments leave open.
        rpc_layer: Protocol in front of addresses.
        task_type: Job of this process.
        task_id: Index of this process in its job.

    Raises:
        InvalidArgumentError: There is no resolver, or an unknown keyword.
        InvalidTypeError: One of them is no `ClusterResolver`.

    Spec: RES-2 to RES-6.
    """

    def __init__(
        self,
        *args: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(task_type, task_id)
        if kwargs:
            raise InvalidArgumentError(
                f"Unexpected kwargs provided: {', '.join(kwargs)}; UnionResolver takes "
                "rpc_layer, task_type and task_id"
            )
        _check(args)
        self._resolvers = args
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the union of the clusters as they are now.

        Tasks of a job that several describe are numbered on, in the order of the resolvers; if a
        description has gaps, each task keeps its number.

        Raises:
            DuplicateTaskError: Two of them describe the same task, where numbers are kept.

        Spec: RES-3.
        """
        parts: dict[str, list[Tasks]] = defaultdict(list)
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                parts[job].append(tasks)
        return ClusterSpec({job: _united(job, parts[job]) for job in parts})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of the task, without one the first resolver's master.

        Raises:
            InvalidArgumentError: The cluster has no such task.

        Spec: RES-5.
        """
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        address = self._address(task_type, task_id)
        # The others' protocols are those of their own masters.
        layer = rpc_layer or self._rpc_layer
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return what the first resolver does. Spec: RES-6."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    def _found_task_type(self) -> str | None:
        """Spec: RES-4."""
        return self._task_type or self._resolvers[0].task_type

    def _found_task_id(self) -> int | None:
        """Spec: RES-4."""
        own = self._task_id
        return self._resolvers[0].task_id if own is None else own

    @property
    def environment(self) -> str | None:
        """What the first resolver says. Spec: RES-4."""
        return self._resolvers[0].environment

    @property
    def rpc_layer(self) -> str | None:
        """Protocol in front of addresses, None for bare ones. Spec: RES-4."""
        return self._rpc_layer or self._resolvers[0].rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _check(resolvers: Sequence[object]) -> None:
    if not resolvers:
        raise InvalidArgumentError(
            "At least one ClusterResolver is required; give the resolvers to unite"
        )
    for resolver in resolvers:
        if not isinstance(resolver, ClusterResolver):
            raise InvalidTypeError(
                f"UnionResolver unites resolvers, and {resolver!r} is no ClusterResolver"
            )


def _united(job: str, parts: Sequence[Tasks]) -> Tasks:
    lists = [part for part in parts if not isinstance(part, Mapping)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    united: dict[int, str] = {}
    for part in parts:
        tasks = part if isinstance(part, Mapping) else dict(enumerate(part))
        if twice := sorted(united.keys() & tasks.keys()):
            raise DuplicateTaskError(
                f"Duplicate keys detected when merging the tasks of job {job!r}: "
                f"several resolvers describe its tasks {twice}. As one of them leaves "
                "gaps between its tasks, each task keeps its number"
            )
        united |= tasks
    return united
