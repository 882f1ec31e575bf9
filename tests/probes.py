"""Health checks, as a kubelet asks for them."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from stratagem_rpc.channel import open_channel

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENCE = 60.0


def health_at(address: str, service: str = "") -> int:
    """The health of a service, asked for on a new connection; "" is the server as a whole."""
    with open_channel(address) as channel:
        try:
            return health(channel, service)
        except grpc.RpcError as error:
            raise AssertionError(f"{address} does not answer\n{_sockets_at(address)}") from error


def health(channel: grpc.Channel, service: str = "") -> int:
    """The health of a service, asked for on a connection that there is."""
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return int(check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE).status)


def _sockets_at(address: str) -> str:
    """What the kernel knows of connections to a port: who has not read or accepted what."""
    port = f":{int(address.rpartition(':')[2]):04X} "
    head, *lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()
    return "\n".join([head, *(line for line in lines if port in line)])
