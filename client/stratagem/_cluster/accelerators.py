"""The accelerators of other machines."""

from __future__ import annotations

import grpc

from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.channel import Deadlines, open_channel
from stratagem_proto.wire.server_status import begin_status
from stratagem_proto.wire.status import from_rpc_error


def gpus_of(address: str, token: str) -> int:
    """Return how many GPUs a worker server has for replicas: the logical ones.

    Raises:
        UnavailableError: It cannot be reached within the deadline of a call.
        UnauthenticatedError: It has another cluster token.
        FailedPreconditionError: What answers there is no worker server.
    """
    status = _status(address, token)
    if not status.HasField("worker_server"):
        raise FailedPreconditionError(
            f"{address} is {status.task.job}:{status.task.index}, which is no worker "
            "server; start `stratagem worker` there, or give the address of one"
        )
    return status.worker_server.gpus


def _status(address: str, token: str) -> GetStatusResponse:
    with open_channel(address) as channel:
        call = begin_status(channel, token, Deadlines().call, wait_for_ready=True)
        try:
            return call.result()
        except grpc.RpcError as error:
            raise from_rpc_error(error, address, "GetStatus") from error
