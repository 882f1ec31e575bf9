"""The settings of servers of every kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_name, check_token
from stratagem_proto.serving.addresses import check_address, is_loopback
from stratagem_proto.wire.transport import check_transport, transport_from_environment


@dataclass(frozen=True)
class ServingSettings:
    """Settings that servers of every kind have.

    Attributes:
        bind: The "host:port" of the data plane; port 0 takes a free one.
        health_bind: The "host:port" of health checks and reflection.
        metrics_bind: The "host:port" of figures for Prometheus; "" for none.
        job: The job name of this task.
        task: The index of this task within its job.
        token: The secret that clients must send when they open a session.
        insecure: Whether other machines may connect although nothing is encrypted.
        lease_seconds: The session of a client ends after so many seconds of silence.
        drain_seconds: Seconds that running calls get to end when the server stops.
        transport: The transports besides gRPC. "auto": a Unix socket and shared memory for
            processes of this host, and the data port for others; "unix": the Unix socket without
            shared memory; "tcp": the data port; "grpc": none.
        data_port: The TCP port for frames, at the host of `bind`; 0 takes a free one, -1 is none.

    Raises:
        InvalidArgumentError: An address or the transport is not valid, or other machines could
            reach the server without `insecure` or without a token, or the token is too short.
    """

    bind: str = "127.0.0.1:0"
    health_bind: str = "127.0.0.1:0"
    metrics_bind: str = ""
    job: str = ""
    task: int = 0
    token: str = field(default="", repr=False)
    insecure: bool = False
    lease_seconds: float = 30.0
    drain_seconds: float = 10.0
    transport: str = field(default_factory=transport_from_environment)
    data_port: int = 0

    def __post_init__(self) -> None:
        metrics = [self.metrics_bind] if self.metrics_bind else []
        for address in (self.bind, self.health_bind, *metrics):
            check_address(address)
        check_name(self.job, "job")
        check_transport(self.transport)
        check_token(self.token)
        if is_loopback(self.bind):
            return
        if not self.insecure:
            raise InvalidArgumentError(
                f"{self.bind} can be reached from other machines and the traffic is "
                "not encrypted; bind to 127.0.0.1, or give --insecure if the network "
                "is trusted"
            )
        if not self.token:
            raise InvalidArgumentError(
                f"{self.bind} can be reached from other machines and there is no "
                "cluster token; give --token-file or set STRATAGEM_TOKEN_FILE to a "
                "file with a secret, or pass the secret itself as token="
            )

    @property
    def label(self) -> str:
        """The name of the task in messages, for instance "/job:ps/task:0"."""
        return f"/job:{self.job}/task:{self.task}"
