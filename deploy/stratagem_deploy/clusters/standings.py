"""What each replica of a parameter server is at present, by its own word."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import grpc

from stratagem_proto.v1.replication_pb2 import ReplicationStatus
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.asking import Answer, begin_status
from stratagem_proto.wire.channel import open_channel


def replica_standings(
    addresses: Sequence[str], token: str, seconds: float
) -> list[ReplicationStatus | None]:
    """Ask replicas what they are; None for each that does not answer.

    Args:
        addresses: Where they are, in the order of their numbers.
        token: The secret of the cluster.
        seconds: The longest wait.
    """
    with ExitStack() as channels:
        calls = [
            begin_status(channels.enter_context(open_channel(address)), token, seconds)
            for address in addresses
        ]
        return [_standing(call) for call in calls]


def _standing(call: Answer[GetStatusResponse]) -> ReplicationStatus | None:
    try:
        return call.result().parameter_server.replication
    except grpc.RpcError:
        return None
