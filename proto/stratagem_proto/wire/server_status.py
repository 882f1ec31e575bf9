"""Asking a server for its status."""

from __future__ import annotations

import grpc

from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.wire.asking import Answer, Question, asking

SERVICE = pb.DESCRIPTOR.services_by_name["StatusService"].full_name


def begin_status(
    channel: grpc.Channel,
    token: str,
    timeout: float,
    with_variables: bool = False,
    wait_for_ready: bool = False,
) -> Answer[pb.GetStatusResponse]:
    """Begin to ask a server of any kind for its status; it needs no session.

    Args:
        channel: A channel to the data plane of the server.
        token: The secret of the cluster, or "".
        timeout: The longest wait, in seconds.
        with_variables: Whether a parameter server is to list its variables.
        wait_for_ready: Whether to wait for a server that cannot be reached yet.
    """
    request = pb.GetStatusRequest(asking=asking(), with_variables=with_variables)
    question = Question(f"/{SERVICE}/GetStatus", request, pb.GetStatusResponse)
    return Answer(channel, question, token, timeout, wait_for_ready)
