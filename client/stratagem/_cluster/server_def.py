"""What a server is told about itself and its cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from stratagem._cluster.roles import Cluster
from stratagem._cluster.spec import ClusterSpec
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.v1.cluster_pb2 import ConfigProto, ServerDef

_Choice = TypeVar("_Choice")

_PROTOCOL = "grpc"


def server_def_of(
    given: ServerDef | Cluster,
    job_name: str | None,
    task_index: int | None,
    protocol: str | None,
    config: ConfigProto | None,
) -> ServerDef:
    """Return the description of a server; what is not None goes before `given`.

    Raises:
        InvalidTypeError: `given` describes neither a server nor a cluster.
        InvalidArgumentError: The job or the task is not given and not the only one.
        UnimplementedError: The protocol is not known.

    Spec: SRV-1.
    """
    if isinstance(given, ServerDef):
        found = ServerDef()
        found.CopyFrom(given)
        _name(found, job_name or given.job_name, task_index)
    else:
        found = _in_cluster(ClusterSpec(given), job_name, task_index)
    found.protocol = protocol or found.protocol or _PROTOCOL
    if found.protocol != _PROTOCOL:
        raise UnimplementedError(
            f"protocol is {found.protocol!r}, but servers speak {_PROTOCOL!r} only"
        )
    if config is not None:
        found.default_session_config.MergeFrom(config)
    return found


def _name(server: ServerDef, job_name: str, task_index: int | None) -> None:
    if not job_name:
        raise InvalidArgumentError(
            "Must specify an explicit `job_name`: the ServerDef has none"
        )
    server.job_name = job_name
    if task_index is not None:
        server.task_index = task_index


def _in_cluster(
    cluster: ClusterSpec, job_name: str | None, task_index: int | None
) -> ServerDef:
    job = _sole(cluster.jobs, "job_name") if job_name is None else job_name
    tasks = cluster.task_indices(job)
    return ServerDef(
        cluster=cluster.as_cluster_def(),
        job_name=job,
        task_index=_sole(tasks, "task_index") if task_index is None else task_index,
    )


def _sole(choices: Sequence[_Choice], what: str) -> _Choice:
    if len(choices) != 1:
        raise InvalidArgumentError(
            f"Must specify an explicit `{what}`: it is one of {list(choices)}"
        )
    return choices[0]
