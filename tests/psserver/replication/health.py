"""What the kubelet makes of the answers to its probes."""

from __future__ import annotations

from grpc_health.v1 import health_pb2

from stratagem_proto.wire.channel import open_channel
from stratagem_psserver.server import ParameterServer


def serves(server: ParameterServer, service: str) -> bool:
    """Whether a probe finds a service of a server; "" is the server as a whole."""
    with open_channel(server.health_address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        answer = check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
