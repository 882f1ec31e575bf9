"""Programs that stand by to take over from the one that coordinates."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from stratagem._cluster.tasks import Membership
from stratagem._coordinator.candidate import Candidate
from stratagem._parameter_server.task import ServerLookup, member_of
from stratagem._ps_client.connections.session import Identity
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.process_name import process_name
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._resolvers import given_or_default
from stratagem_proto.configuration.token_file import token_from_environment
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR
from stratagem_proto.wire.channel import Deadlines


@contextmanager
def stand_by(
    cluster_resolver: ClusterResolver | None = None,
    *,
    token: str | None = None,
    connect_seconds: float = 60.0,
) -> Iterator[None]:
    """Wait until this program is the one that coordinates, and be it in the block.

    Start the same program twice. One goes on at once; the other one waits here, and goes on when
    nothing is heard of the first any more, within about two seconds of its end::

        with stratagem.coordinator.stand_by():
            strategy = stratagem.ParameterServerStrategy()
            coordinator = ClusterCoordinator(strategy)
            ...

    Make strategies in the block. From the moment in which another program goes on, servers refuse
    whatever this one and its functions on workers ask, by a `SupersededError`: a program that was
    suspended, or cut off, changes nothing when it wakes up.

    The end of the block is the end of the work, for which other programs wait no more. If it is
    left by an exception, the next one goes on at once.

    Args:
        cluster_resolver: Describes the cluster and this task, which is the chief; by default the
            environment variable TF_CONFIG does.
        token: Secret of the cluster, as of `ParameterServerStrategy`.
        connect_seconds: How long a server may be away until it is asked again.

    Raises:
        InvalidArgumentError: The cluster has no parameter servers, or this program is not its
            chief.
        CancelledError: The other program has come to its end: there is nothing to take over.
    """
    resolver = given_or_default(cluster_resolver)
    candidate = _candidate(resolver, token, connect_seconds)
    finished = False
    try:
        candidate.await_turn()
        yield
        finished = True
    except SystemExit as end:
        finished = end.code in (None, 0)
        raise
    finally:
        candidate.leave(finished)
        candidate.close()


def _candidate(resolver: ClusterResolver, token: str | None, connect_seconds: float) -> Candidate:
    if not resolver.cluster_spec():
        raise InvalidArgumentError(
            "a program stands by to coordinate a cluster, and there is none; give stand_by() a "
            "cluster_resolver, or set TF_CONFIG"
        )
    member = member_of(resolver)
    _require_chief(member)
    secret = resolver.cluster_token if token is None else token
    identity = Identity(
        ROLE_COORDINATOR,
        token=token_from_environment() if secret is None else secret,
        outlives_servers=True,
    )
    servers = ServerGroup(
        member.server_addresses,
        identity,
        Deadlines(connect=connect_seconds),
        locate=ServerLookup(resolver),
    )
    name = f"{member.name} (process {os.getpid()} of {socket.gethostname()})"
    return Candidate(servers, process_name(), name)


def _require_chief(member: Membership) -> None:
    if member.task_type != "chief":
        raise InvalidArgumentError(
            f"only the chief coordinates, but this program is {member.name}; start it as the "
            "chief, by the task of TF_CONFIG or of its cluster_resolver",
            task=member.name,
        )
