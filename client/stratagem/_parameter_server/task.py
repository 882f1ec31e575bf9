"""What a strategy makes of the task that this process is."""

from __future__ import annotations

import logging

from stratagem._cluster.device_filters import visible_servers
from stratagem._cluster.membership import Membership
from stratagem._core.device_names import list_logical_devices
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.pushing.push import PullMode
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.settings import Settings
from stratagem._ps_client.connections.session import Identity
from stratagem._ps_client.group import ServerGroup
from stratagem.cluster_resolver import ClusterResolver
from stratagem.consistency import Consistency
from stratagem_proto.configuration.token_file import token_from_environment
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.wire.channel import Deadlines
from stratagem_proto.wire.encodings import NARROW_DTYPES

_LOG = logging.getLogger("stratagem")


class ServerLookup:
    """Says where parameter servers are now.

    Args:
        resolver: The resolver.
    """

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
    return Membership.of(resolver.cluster_spec(), resolver.task_type, resolver.task_id)


def servers_of(member: Membership, resolver: ClusterResolver, settings: Settings) -> ServerGroup:
    """Return the servers of a task; nothing is sent to them yet.

    Args:
        member: The task.
        resolver: Has the cluster's secret, where the settings have none; by default that of the
            environment. Asked again for servers that cannot be reached.
        settings: What the user chose.
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
    secret = token_from_environment() if token is None else token
    return Identity(
        member.role, member.task_type, member.task_id, secret, outlives_servers=not synchronous
    )


def replica_devices(count: int | None) -> list[str]:
    """Return the devices of this process's replicas, as in "GPU:0".

    Raises:
        InvalidArgumentError: There are not as many.
    """
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
    """Return the variables of a task that has taken no step.

    Raises:
        InvalidArgumentError: There are too few workers for the consistency, or `pull_dtype` is no
            type to which parameters are rounded.
    """
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
