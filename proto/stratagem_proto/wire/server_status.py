"""Asking a server for its status."""

from __future__ import annotations

import grpc

from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_OBSERVER, OpenSessionRequest

SERVICE = pb.DESCRIPTOR.services_by_name["StatusService"].full_name


def begin_status(
    channel: grpc.Channel,
    token: str,
    timeout: float,
    with_variables: bool = False,
    wait_for_ready: bool = False,
) -> grpc.Future[pb.GetStatusResponse]:
    """Begin a call that asks a server of any kind for its status; it needs no session.

    Args:
        channel: A channel to the data plane of the server.
        token: The secret of the cluster, or "".
        timeout: The longest wait, in seconds.
        with_variables: Whether a parameter server is to list its variables.
        wait_for_ready: Whether to wait for a server that cannot be reached yet.
    """
    asking = OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION, cluster_token=token, role=ROLE_OBSERVER
    )
    method: grpc.UnaryUnaryMultiCallable[pb.GetStatusRequest, pb.GetStatusResponse]
    method = channel.unary_unary(
        f"/{SERVICE}/GetStatus",
        pb.GetStatusRequest.SerializeToString,
        pb.GetStatusResponse.FromString,
    )
    request = pb.GetStatusRequest(asking=asking, with_variables=with_variables)
    return method.future(request, timeout=timeout, wait_for_ready=wait_for_ready)
