"""The command of a server process: its options, its life from start to signal, its spans."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import AfterValidator, Field

from stratagem_proto.configuration.model import ProcessSettings
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_name
from stratagem_proto.secret_files import TOKEN_FILE, is_readable_by_others
from stratagem_rpc import tracing
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import AUTO, TRANSPORTS, check_transport
from stratagem_rpc.notices import notice_at, watched
from stratagem_rpc.server_log import LOG, to_stderr
from stratagem_rpc.serving.process import raise_limit
from stratagem_rpc.serving.settings import LAST_PORT, check_address

if TYPE_CHECKING:
    from stratagem_rpc.serving.server import RpcServer


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
        return {**own, "token": TOKEN_FILE.read(self.token_file)}


AsJson = Annotated[bool, typer.Option("--json", help="Write the log as JSON on a terminal, too.")]


def serve(server: RpcServer, options: ServingOptions, as_json: bool) -> None:
    """Serve until SIGTERM, SIGINT or the notice that the options name, then drain.

    Args:
        server: A server that has not started.
        options: The options of the process.
        as_json: Whether to write the log as JSON on a terminal, too.

    Raises:
        ImportError: Spans are enabled, and OpenTelemetry is not installed.
        InvalidArgumentError: The folder of the ready file does not exist, or there is no such kind
            of notice.
        UnavailableError: An address cannot be bound.
    """
    ready_file = options.ready_file
    _check_folder(ready_file)
    notice = notice_at(options.notice) if options.notice else None
    to_stderr(as_json)
    raise_limit()
    _warn_of_readers(options.secrets)
    spans = exported_spans(options.label) if options.traces else nullcontext()
    # What runs in this process calls others, too, as the functions of a worker server do.
    shown = presenting(options.tls) if options.tls else nullcontext()
    with spans, shown, asked_to_stop() as (asked, ask), server, watched(notice, ask, LOG.warning):
        if ready_file is not None:
            _announce(server, ready_file)
        asked.recv(1)
    if server.leaves_work:
        # Python would wait for its thread.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _check_folder(ready_file: Path | None) -> None:
    if ready_file is not None and not ready_file.parent.is_dir():
        raise InvalidArgumentError(
            f"the ready file {str(ready_file)!r} cannot be written: create its folder first"
        )


def _warn_of_readers(secrets: Mapping[str, Path | None]) -> None:
    """Log a warning of each secret that other users of the machine can read."""
    for secret, path in secrets.items():
        if path is not None and is_readable_by_others(path):
            LOG.warning(
                f"other users of this machine can read {secret}",
                file=str(path),
                remedy=f"chmod 600 {path}",
            )


@contextmanager
def asked_to_stop() -> Iterator[tuple[socket.socket, Callable[[], object]]]:
    """Return a socket that can be read once the process is to stop, and what asks for that.

    SIGTERM and SIGINT do so, too.

    A lock that a signal handler releases would not work: the main thread may be just about to wait
    for it, or another thread may get the signal, and the wait would never end.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        yield reader, partial(writer.send, b"notice")
        signal.set_wakeup_fd(-1)


def _announce(server: RpcServer, ready_file: Path) -> None:
    """Write the addresses to the ready file, which appears complete or not at all."""
    facts = {
        "address": server.address,
        "health_address": server.health_address,
        "metrics_address": server.metrics_address,
        "page_url": server.page_url,
        "pid": os.getpid(),
    }
    with tempfile.NamedTemporaryFile(
        "w", dir=ready_file.parent, delete=False, encoding="utf-8"
    ) as file:
        json.dump(facts, file)
    os.replace(file.name, ready_file)


@contextmanager
def exported_spans(server: str) -> Iterator[None]:
    """Send spans to the place that OpenTelemetry's variables give; the last ones at the end.

    Args:
        server: The task, for instance "ps:0".

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise tracing.not_installed() from error
    names = {"service.name": "stratagem", "service.instance.id": server}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracing.enable(provider)
    try:
        yield
    finally:
        tracing.disable()
        provider.shutdown()
