"""The health of one server, asked for over the standard gRPC health service."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import IntEnum

import grpc
from grpc_health.v1 import health_pb2

from stratagem_proto.serving.settings import check_server_address
from stratagem_proto.wire.channel import ASKING_CHANNEL_OPTIONS

_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = health_pb2.HealthCheckResponse.SERVING


class Health(IntEnum):
    """The health of a server; the values are exit codes."""

    SERVING = 0
    NOT_SERVING = 1
    UNREACHABLE = 2


@dataclass(frozen=True)
class HealthReport:
    """The result of a health check.

    Attributes:
        address: Address of the health service, "host:port".
        health: How the server is.
        seconds: How long the answer took.
        detail: Why it cannot be reached, or "".
    """

    address: str
    health: Health
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        if self.health is Health.UNREACHABLE:
            return f"{self.address} cannot be reached: {self.detail}"
        word = "serves" if self.health is Health.SERVING else "does not serve"
        return f"{self.address} {word} ({1000 * self.seconds:.0f} ms)"

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"health": self.health.name})


def check_health(address: str, timeout: float) -> HealthReport:
    """Check the health of a server, waiting at most `timeout` seconds for its answer.

    Raises:
        InvalidArgumentError: The address is not "host:port".
    """
    check_server_address(address)
    began = time.monotonic()
    health, detail = _ask(address, timeout)
    return HealthReport(address, health, time.monotonic() - began, detail)


def _ask(address: str, timeout: float) -> tuple[Health, str]:
    # Probes have no certificates, so nothing is encrypted there.
    with grpc.insecure_channel(address, options=ASKING_CHANNEL_OPTIONS) as channel:
        check = channel.unary_unary(
            _CHECK,
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            return Health.UNREACHABLE, _reason(error)
    if answer.status == _SERVING:
        return Health.SERVING, ""
    return Health.NOT_SERVING, ""


def _reason(error: grpc.RpcError) -> str:
    if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
        return str(error.details())
    return (
        "it does not answer health checks there. This is probably its main port; give the one of "
        "--health-bind, by default a free one that its log names"
    )
