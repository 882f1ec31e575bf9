"""The sockets that a server listens on for frames."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from stratagem_proto.errors import PermissionDeniedError, UnavailableError
from stratagem_proto.protocol import digest_of
from stratagem_proto.server_log import LOG
from stratagem_proto.sockets.closing import closed_on_failure
from stratagem_proto.sockets.greeting import SECRET_BYTES, secret_of
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.transport import AUTO, TCP, UNIX

if TYPE_CHECKING:
    from stratagem_proto.certificates.shown import ShownCertificate

_BACKLOG = 4096

# The value of `data_port` for no data port.
NO_PORT = -1


_NEVER = datetime.max.replace(tzinfo=timezone.utc)

# So many sessions with certificates may use Unix sockets at once.
_MOST_SHOWN = 65_536


@dataclass(frozen=True)
class OfferedSockets:
    """What a server offers to its sessions.

    Attributes:
        described: What it tells all of them.
        run_secret: Drawn by this run of the server, and told to nobody.
    """

    described: FrameSockets
    run_secret: bytes = field(repr=False)
    # By session; from the one that was told the longest time ago.
    _shown: dict[bytes, ShownCertificate] = field(default_factory=dict, repr=False)

    def to(self, session_id: bytes, certificate: ShownCertificate | None = None) -> FrameSockets:
        """Return what a session is told once it is open, which its client alone can use.

        Args:
            session_id: The session.
            certificate: What its client has shown when it opened the session. It counts for the
                Unix socket, too, on which nobody shows any, nor one that was renewed: so its end
                does not matter there.

        Raises:
            PermissionDeniedError: A client with the certificate of somebody else has opened it.
        """
        if certificate is not None:
            before = self._shown.pop(session_id, certificate)
            if before.identity != certificate.identity:
                self._shown[session_id] = before
                raise PermissionDeniedError(
                    f"session {digest_of(session_id)} is that of {before.identity.label}, and was "
                    f"opened with the certificate of {certificate.identity.label}; open another one"
                )
            self._shown[session_id] = certificate._replace(ends=_NEVER)
            if len(self._shown) > _MOST_SHOWN:
                del self._shown[next(iter(self._shown))]
        told = FrameSockets()
        told.CopyFrom(self.described)
        told.session_id, told.secret = session_id, self.secret(session_id, certificate)
        return told

    def secret(self, session_id: bytes, certificate: ShownCertificate | None) -> bytes:
        """Return the secret of a session with whoever has shown a certificate, or none.

        The id of a session alone therefore leads nobody else to its secret.
        """
        owner = certificate.identity.uri.encode() if certificate else b""
        return secret_of(session_id, self.run_secret, owner)

    def certificate_of(self, session_id: bytes) -> ShownCertificate | None:
        """Return what the client of a session has shown; None if it is not known."""
        return self._shown.get(session_id)


class Listening(NamedTuple):
    """The sockets to which clients connect.

    Attributes:
        offered: The description of the sockets for clients.
        sockets: The sockets; empty if clients can only use gRPC.
    """

    offered: OfferedSockets
    sockets: list[socket.socket]


def listen(address: str, transport: str, data_port: int = 0) -> Listening:
    """Listen on the sockets of a server with these settings.

    Args:
        address: The "host:port" where it serves gRPC.
        transport: As in `ServingSettings`.
        data_port: As in `ServingSettings`.

    Raises:
        UnavailableError: The data port is taken.
    """
    host, _, port = address.rpartition(":")
    run_secret = secrets.token_bytes(SECRET_BYTES)
    listening = Listening(OfferedSockets(FrameSockets(port=int(port)), run_secret), [])
    with ExitStack() as opened:
        if transport in (AUTO, UNIX):
            _listen_here(listening, opened)
        if transport in (AUTO, TCP) and data_port != NO_PORT:
            _listen_for_others(listening, opened, host.strip("[]"), data_port)
        opened.pop_all()
    return listening


def _listen_here(listening: Listening, opened: ExitStack) -> None:
    # With an abstract name nothing remains of a server that is killed, and processes in other
    # network namespaces cannot see it.
    name = b"stratagem-" + secrets.token_hex(16).encode()
    try:
        listening.sockets.append(opened.enter_context(unix_socket(name)))
    except OSError as error:
        LOG.info("cannot listen on a Unix socket", why=str(error))
    else:
        listening.offered.described.name = name


def _listen_for_others(listening: Listening, opened: ExitStack, host: str, port: int) -> None:
    try:
        sock = opened.enter_context(tcp_socket(host, port))
    except OSError as error:
        if port:
            raise cannot_listen(f"{host}:{port}") from error
        LOG.info("cannot listen on a data port", host=host, why=str(error))
    else:
        listening.sockets.append(sock)
        listening.offered.described.data_port = sock.getsockname()[1]


def unix_socket(name: bytes) -> socket.socket:
    """Listen on a Unix socket with an abstract name.

    Raises:
        OSError: This system has no such sockets, or the name is taken.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closed_on_failure(listening):
        listening.bind(b"\0" + name)
        listening.setblocking(False)
        listening.listen(_BACKLOG)
    return listening


def tcp_socket(host: str, port: int) -> socket.socket:
    """Listen at a port of a host; 0 takes a free one.

    Raises:
        OSError: The port is taken, or the host is not this machine.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, bind = found[0]
    # Like gRPC, this takes connections to any address of IPv4 and IPv6.
    both = bind[0] == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server(bind[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    listening.setblocking(False)
    return listening


def cannot_listen(address: str) -> UnavailableError:
    """Return the error of a server that could not bind "host:port"."""
    return UnavailableError(
        f"cannot listen on {address}: the port is taken, or the host is not this "
        "machine's; stop what listens there or choose another port (0 takes a free "
        "one)"
    )
