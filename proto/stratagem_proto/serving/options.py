"""The options of server processes of every kind: flags, environment variables, file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from stratagem_proto.configuration.model import ProcessSettings
from stratagem_proto.configuration.token_file import read_token
from stratagem_proto.protocol import check_name
from stratagem_proto.serving.addresses import LAST_PORT, check_address
from stratagem_proto.wire.transport import AUTO, TRANSPORTS, check_transport


def _checked(check: Callable[[str], None]) -> AfterValidator:
    def validate(text: str) -> str:
        check(text)
        return text

    return AfterValidator(validate)


# The options that only processes have, and servers inside programs do not.
_OF_PROCESSES = {"config", "token_file", "ready_file", "traces", "notice"}

Address = Annotated[str, _checked(check_address)]
OptionalAddress = Annotated[
    str, _checked(lambda address: check_address(address) if address else None)
]
Job = Annotated[str, _checked(lambda name: check_name(name, "job"))]
Transport = Annotated[str, _checked(check_transport)]


class ServingOptions(ProcessSettings):
    """Settings of any server process."""

    bind: Address = Field(
        "127.0.0.1:0", description="host:port to serve on; port 0 takes a free one."
    )
    health_bind: Address = Field(
        "127.0.0.1:0", description="host:port of health checks and reflection."
    )
    metrics_bind: OptionalAddress = Field(
        "",
        description="host:port of figures for Prometheus and of a page to look at, for instance "
        "0.0.0.0:2224.",
    )
    job: Job = Field("", description="Job name of this task.")
    task: int = Field(0, ge=0, description="Index within the job.")
    token_file: Path | None = Field(None, description="File with the cluster's secret.")
    tls: Path | None = Field(
        None, description="Folder with tls.crt, tls.key and ca.crt, by which clients are known."
    )
    insecure: bool = Field(False, description="Serve other machines unencrypted.")
    lease_seconds: float = Field(
        30.0, ge=0.1, description="Seconds of silence after which a client is considered dead."
    )
    drain_seconds: float = Field(
        10.0, ge=0, description="Seconds that running work gets to end after SIGTERM."
    )
    notice: str = Field(
        "",
        description="Where it will stand that the process is to end, as by SIGTERM: file:PATH, "
        "once there is such a file; or kubernetes:NAMESPACE/POD, once that pod is to be deleted.",
    )
    transport: Transport = Field(
        AUTO,
        description="auto: a Unix socket and shared memory for processes of this host, "
        "a data port for others, else gRPC; unix: no shared memory and no data port; "
        "tcp: the data port for all; grpc: only gRPC.",
        json_schema_extra={"values": [*TRANSPORTS]},
    )
    data_port: int = Field(
        0,
        ge=-1,
        le=LAST_PORT,
        description="TCP port for frames in place of gRPC, at the host of --bind; 0 "
        "takes a free one, -1 turns it off.",
    )
    traces: bool = Field(
        False, description="Send spans of OpenTelemetry to OTEL_EXPORTER_OTLP_ENDPOINT."
    )
    ready_file: Path | None = Field(
        None, description="File that is written with the addresses once the server serves."
    )

    @property
    def label(self) -> str:
        """The task, for instance "ps:0"."""
        return f"{self.job}:{self.task}"

    @property
    def secrets(self) -> dict[str, Path | None]:
        """The files with secrets, by what they are."""
        return {"the cluster token": self.token_file}

    def serving(self) -> dict[str, Any]:
        """Return the options that are settings of servers, by name."""
        own = self.model_dump(exclude=_OF_PROCESSES)
        return {**own, "token": read_token(self.token_file)}
