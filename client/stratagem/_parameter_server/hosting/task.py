"""What the user of a strategy chooses, and what it makes of the task that this process is."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Any

import torch

from stratagem._cluster.device_filters import ClusterDeviceFilters, visible_servers
from stratagem._cluster.tasks import Membership
from stratagem._core.device_names import list_logical_devices
from stratagem._parameter_server.hosting.push import PullMode
from stratagem._parameter_server.hosting.steps import StepTracker
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.shards import VariablePartitioner, placement_named
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.names import process_name
from stratagem._ps_client.session import Identity
from stratagem.cluster_resolver import ClusterResolver
from stratagem.consistency import Consistency
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_proto.v1.cluster_pb2 import ConfigProto
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_proto.wire.encodings import NARROW_DTYPES
from stratagem_rpc.channel import Deadlines

# Where variables are is decided by the task that creates them, and each task has the token from
# where it runs.
_OF_ONE_TASK = {"variable_partitioner", "placement", "token"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of a `ParameterServerStrategy`, but for the cluster.

    Raises:
        InvalidArgumentError: There is no such placement, so many pushes cannot be in flight, or
            buffers are to be something else.
    """

    variable_partitioner: VariablePartitioner | None
    consistency: Consistency
    placement: str
    pull_dtype: torch.dtype | None
    fused_steps: bool | None
    pushes_in_flight: int
    num_replicas_per_worker: int | None
    token: str | None
    device_filters: ClusterDeviceFilters | None
    session_config: ConfigProto | None
    connect_seconds: float
    peer_seconds: float
    buffers: str = "own"

    def __post_init__(self) -> None:
        placement_named(self.placement)
        if self.buffers not in ("own", "mean"):
            raise InvalidArgumentError(f'buffers is "own" or "mean", not {self.buffers!r}')
        if self.pushes_in_flight not in (0, 1):
            raise InvalidArgumentError(f"pushes_in_flight is 0 or 1, not {self.pushes_in_flight!r}")
        if self.pushes_in_flight:
            self._require_asynchronous()

    def _require_asynchronous(self) -> None:
        if not self.consistency._is_free:
            raise InvalidArgumentError(
                "pushes_in_flight=1 has a step compute without the worker's last push, "
                f"which {self.consistency!r} does not allow; leave it out, or choose "
                'consistency="async"'
            )
        if self.fused_steps is False:
            raise InvalidArgumentError(
                "pushes_in_flight=1 takes the values of a step from the answer to a "
                "push; leave fused_steps=False out"
            )

    @property
    def synchronous(self) -> bool:
        """Whether the workers take their steps together."""
        return self.consistency._closes_steps

    def arguments(self) -> dict[str, Any]:
        """Return them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def of_all_tasks(self) -> dict[str, Any]:
        """Return by name those that all tasks of the cluster share."""
        given = self.arguments().items()
        return {name: value for name, value in given if name not in _OF_ONE_TASK}


_LOG = logging.getLogger("stratagem")


class ServerLookup:
    """Says where parameter servers are now."""

    def __init__(self, resolver: ClusterResolver) -> None:
        self._resolver = resolver

    def __call__(self, index: int) -> str:
        """Return the "host:port" of a server; "" if the resolver does not say."""
        try:
            return self._resolver.cluster_spec().task_address("ps", index)
        except Exception as error:
            # Where nobody knows more, the server may come back to where it was.
            _LOG.debug("the resolver does not say where servers are: %s", error)
            return ""


def member_of(resolver: ClusterResolver) -> Membership:
    """Return which task a resolver says that this process is."""
    return Membership.checked(resolver.cluster_spec(), resolver.task_type, resolver.task_id)


def servers_of(member: Membership, resolver: ClusterResolver, settings: Settings) -> ServerGroup:
    """Return the servers of a task; nothing is sent to them yet.

    The resolver has the cluster's secret where the settings have none, by default that of the
    environment; it is asked again for servers that cannot be reached.
    """
    token = resolver.cluster_token if settings.token is None else settings.token
    return ServerGroup(
        member.server_addresses,
        _identity_of(member, token, settings.synchronous),
        Deadlines(connect=settings.connect_seconds),
        visible_servers(member, settings.device_filters, settings.session_config),
        ServerLookup(resolver),
    )


def _identity_of(member: Membership, token: str | None, synchronous: bool) -> Identity:
    secret = TOKEN_FILE.from_environment() if token is None else token
    return Identity(
        member.role,
        member.task_type,
        member.task_id,
        secret,
        outlives_servers=not synchronous,
        program=process_name() if member.role == ROLE_CHIEF else b"",
        process=process_name(),
    )


def replica_devices(count: int | None) -> list[str]:
    """Return the devices of this process's replicas, as in "GPU:0"."""
    kind = "GPU" if list_logical_devices("GPU") else "CPU"
    available = len(list_logical_devices(kind))
    if count is None:
        count = available if kind == "GPU" else 1
    if not 1 <= count <= available:
        raise InvalidArgumentError(
            f"num_replicas_per_worker is {count}, but this process has {available} "
            f"{kind} devices; config.set_logical_{kind.lower()}s(n) makes more"
        )
    return [f"{kind}:{index}" for index in range(count)]


def store_of(member: Membership, servers: ServerGroup, settings: Settings) -> RemoteStore:
    """Return the variables of a task that has taken no step."""
    pull_dtype = settings.pull_dtype
    if pull_dtype is not None and pull_dtype not in NARROW_DTYPES:
        known = " or ".join(map(str, NARROW_DTYPES))
        raise InvalidArgumentError(
            f"pull_dtype is {known}, or None for parameters as they are, not {pull_dtype!r}"
        )
    step_tracker = _step_tracker_of(member, servers, settings.consistency)
    # A server that goes back may lack a part of a step that others do not send again.
    servers.need_all(step_tracker.is_synchronous)
    mode = _pull_mode(step_tracker, settings)
    return RemoteStore(servers, settings.peer_seconds, step_tracker, pull_dtype, mode)


def _pull_mode(step_tracker: StepTracker, settings: Settings) -> PullMode:
    if settings.pushes_in_flight and step_tracker.worker is not None:
        return PullMode.IN_FLIGHT
    is_alone = step_tracker.worker is not None and step_tracker.num_workers == 1
    fused = is_alone if settings.fused_steps is None else settings.fused_steps
    return PullMode.ALWAYS if fused else PullMode.NEVER


def _step_tracker_of(member: Membership, servers: ServerGroup, initial: Consistency) -> StepTracker:
    if not member.trains:
        return StepTracker(initial, None, 1)
    initial._check(member.num_workers)
    # Who may not call the first server cannot be held together with the others.
    hidden = servers.used[0] not in servers.called and initial._is_free
    # Workers that join a coordinator may leave gaps between their indices.
    places = max(member.num_workers, member.number + 1)
    return StepTracker(initial, None if hidden else member.number, places)
