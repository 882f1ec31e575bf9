"""What servers of every kind are told: addresses to listen on, and whom to trust."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_name, check_token
from stratagem_rpc.certificates.presented import certificates_in
from stratagem_rpc.channel import check_transport, transport_from_environment
from stratagem_rpc.server_log import LOG

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder
    from stratagem_rpc.certificates.identity import CertifiedIdentity

LAST_PORT = 65_535


def check_address(address: str) -> None:
    """Check that a text is "host:port" with a port from 0 to 65535, to listen on.

    Raises:
        InvalidArgumentError: It is not.
    """
    if not 0 <= _port_of(address) <= LAST_PORT:
        raise InvalidArgumentError(
            f"{address!r} is not an address to listen on; give host:port with a port from "
            f"0 to {LAST_PORT}, for instance 127.0.0.1:0"
        )


def check_server_address(address: str) -> None:
    """Check that a text is the "host:port" of a server, with a port from 1 to 65535.

    Raises:
        InvalidArgumentError: It is not.
    """
    if not 0 < _port_of(address) <= LAST_PORT:
        raise InvalidArgumentError(
            f"{address!r} is not an address of a server; give HOST:PORT with a port from 1 to "
            f"{LAST_PORT}, as in 127.0.0.1:2222"
        )


def _port_of(address: str) -> int:
    """Return the port of "host:port"; -1 for anything else."""
    host, _, port = address.rpartition(":")
    return int(port) if host and port.isascii() and port.isdigit() else -1


def is_loopback(address: str) -> bool:
    """Return whether only processes of this machine can connect to "host:port"."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(
    server: grpc.Server | grpc.aio.Server,
    address: str,
    certificates: CertificateFolder | None = None,
) -> str:
    """Bind a server, and return its address with the actual port.

    Args:
        server: The server.
        address: The "host:port" to listen on.
        certificates: What the server shows, and by which it knows its clients; None for a port
            that anybody can connect to unencrypted.

    Raises:
        UnavailableError: The port is taken, or the host is not this machine's.
    """
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.server_credentials())
    except RuntimeError as error:
        # It loads PyTorch, for which commands that only check addresses do not wait.
        from stratagem_rpc.socket_server.listener import cannot_listen

        raise cannot_listen(address) from error
    return f"{address.rpartition(':')[0]}:{port}"


# Servers have an option for it. Whatever has no options goes by the same environment variable.

INSECURE_VARIABLE = "STRATAGEM_INSECURE"


def is_insecure() -> bool:
    """Return what `STRATAGEM_INSECURE` says, by default False.

    Raises:
        InvalidArgumentError: It says neither yes nor no.
    """
    said = os.environ.get(INSECURE_VARIABLE, "")
    # Late: few processes ask, and those that do are about to connect to others.
    from pydantic import TypeAdapter, ValidationError

    try:
        return bool(said) and TypeAdapter(bool).validate_python(said)
    except ValidationError as error:
        raise InvalidArgumentError(
            f"{INSECURE_VARIABLE} is {said!r}; set it to true or false, or leave it out"
        ) from error


def be_insecure() -> None:
    """Let this process, and those that it starts, speak unencrypted with other machines."""
    os.environ[INSECURE_VARIABLE] = "true"


def _warn(message: str) -> None:
    LOG.warning(message)


@dataclass(frozen=True)
class ServingSettings:
    """Settings that servers of every kind have.

    Attributes:
        bind: The "host:port" of the data plane; port 0 takes a free one.
        health_bind: The "host:port" of health checks and reflection.
        metrics_bind: The "host:port" of figures for Prometheus; "" for none.
        job: The job name of this task.
        task: The index of this task within its job.
        token: The secret of the cluster, which clients must prove to know.
        tls: The folder with the certificate of the server, its key, and the authority of the
            cluster. Only clients that this authority has certified can connect then, and all is
            encrypted that leaves the machine. None for a server that takes the token.
        insecure: Whether other machines may connect although nothing is encrypted.
        lease_seconds: The session of a client ends after so many seconds of silence.
        drain_seconds: Seconds that running calls get to end when the server stops.
        transport: The transports besides gRPC. "auto": a Unix socket and shared memory for
            processes of this host, and the data port for others; "unix": the Unix socket without
            shared memory; "tcp": the data port; "grpc": none.
        data_port: The TCP port for frames, at the host of `bind`; 0 takes a free one, -1 is none.

    Raises:
        ImportError: There are certificates, and the package cryptography is not installed.
        InvalidArgumentError: An address, the transport, a certificate or the token is not valid; or
            other machines could reach the server unencrypted without `insecure`, or without a
            token.
    """

    bind: str = "127.0.0.1:0"
    health_bind: str = "127.0.0.1:0"
    metrics_bind: str = ""
    job: str = ""
    task: int = 0
    token: str = field(default="", repr=False)
    tls: Path | None = None
    insecure: bool = False
    lease_seconds: float = 30.0
    drain_seconds: float = 10.0
    transport: str = field(default_factory=transport_from_environment)
    data_port: int = 0

    def __post_init__(self) -> None:
        for address in self._addresses:
            check_address(address)
        check_name(self.job, "job")
        check_transport(self.transport)
        check_token(self.token)
        if self.certificates is not None:
            self._check_certificate(self.certificates.current().identity)
        elif remote := self._remote:
            self._check_trust(remote[0])

    @property
    def _addresses(self) -> list[str]:
        return [self.bind, self.health_bind, *([self.metrics_bind] if self.metrics_bind else [])]

    @property
    def _remote(self) -> list[str]:
        return [address for address in self._addresses if not is_loopback(address)]

    @property
    def is_exposed(self) -> bool:
        """Whether other machines reach the server unencrypted."""
        return bool(self._remote) and self.tls is None

    @property
    def certificates(self) -> CertificateFolder | None:
        """The certificates of the server; None if it has none."""
        return certificates_in(self.tls, _warn) if self.tls else None

    @property
    def certified_task(self) -> int:
        """The index of the task that the certificate of the process names."""
        return self.task

    def _check_certificate(self, identity: CertifiedIdentity) -> None:
        if (identity.job, identity.task) != (self.job, self.certified_task):
            raise InvalidArgumentError(
                f"the certificate in {self.tls} is that of {identity.label}, and this server is "
                f"{self.label}; give the folder of this task, or its --job and --task"
            )

    def _check_trust(self, address: str) -> None:
        if not self.insecure:
            raise InvalidArgumentError(
                f"{address} can be reached from other machines and the traffic is "
                "not encrypted; give --tls with a folder of certificates, bind to 127.0.0.1, or "
                "give --insecure if the network is trusted"
            )
        if not self.token:
            raise InvalidArgumentError(
                f"{address} can be reached from other machines and there is no "
                "cluster token; give --token-file or set STRATAGEM_TOKEN_FILE to a "
                "file with a secret, or pass the secret itself as token="
            )

    @property
    def label(self) -> str:
        """The name of the task in messages, for instance "/job:ps/task:0"."""
        return f"/job:{self.job}/task:{self.task}"
