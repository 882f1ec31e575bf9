"""The calls that servers get."""

from __future__ import annotations

from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1.session_pb2 import ROLE_OBSERVER, OpenSessionRequest
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_proto.wire.server_status import SERVICE
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient


def calls(server: str, *methods: str) -> list[int]:
    """How often methods of a server were called."""
    asking = OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION, cluster_token=TOKEN, role=ROLE_OBSERVER
    )
    with RawClient(server, TOKEN) as client:
        status = client.unary(
            "GetStatus",
            GetStatusRequest(asking=asking),
            GetStatusResponse,
            service=SERVICE,
        )
    ended = {one.method: sum(one.ended.values()) for one in status.methods}
    return [ended.get(method, 0) for method in methods]
