"""Listening for clients of sockets: the ports and names, and who may connect."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import grpc

from stratagem_proto.errors import (
    MalformedStreamError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.protocol import digest_of
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_rpc.channel import AUTO, PATIENT_SECONDS, STALL_SECONDS, TCP, UNIX
from stratagem_rpc.server_log import LOG
from stratagem_rpc.socket_server.call import Handler, find_handler
from stratagem_rpc.socket_server.memory import FrameMemory, Reserve, refused
from stratagem_rpc.socket_server.peer import Peer
from stratagem_rpc.sockets.closing import closed_on_failure, hang_up, served_at, tune
from stratagem_rpc.sockets.frames import SCRATCH_BYTES, SECRET_BYTES, secret_of
from stratagem_rpc.sockets.streams import SEALED_BYTES, EncryptedStream, require_some

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder, ShownCertificate

_CREDENTIALS = struct.Struct("3i")
_ROOT = 0


def user_of(connection: socket.socket) -> int:
    """Return the number of the user, as this process sees it.

    Raises:
        OSError: The system does not say.
    """
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return int(user)


def is_trusted(user: int) -> bool:
    """Return whether a user may connect: that of this process, or root."""
    return user in (os.geteuid(), _ROOT)


# Nobody shows more at once.
_FLIGHT_BYTES = 16 << 10


class Encryption:
    """Shakes hands with clients, each of which has to show a certificate of the cluster.

    Public keys take time, and anybody can connect; so they are for a thread of their own, and the
    event loop answers clients meanwhile.

    Args:
        certificates: What the server shows, and whom it trusts, at each handshake.
    """

    def __init__(self, certificates: CertificateFolder) -> None:
        self._certificates = certificates
        self._thread = ThreadPoolExecutor(1, "stratagem-handshakes")
        self._room = bytearray(SEALED_BYTES)

    async def begin(self, sock: socket.socket) -> tuple[EncryptedStream, ShownCertificate]:
        """Shake hands; return the stream, and what the client has shown.

        Raises:
            OSError: It does not speak TLS, shows no certificate that an authority of this cluster
                has signed, or is gone.
            InvalidArgumentError: Its certificate does not say whose it is.
            UnauthenticatedError: Its certificate counts no more, or is of another cluster.
        """
        loop, received = asyncio.get_running_loop(), b""
        stream = await loop.run_in_executor(self._thread, self._stream, sock)
        while True:
            over, sealed = await loop.run_in_executor(self._thread, stream.step, received)
            await loop.sock_sendall(sock, sealed)
            if over:
                return stream, await loop.run_in_executor(self._thread, self._accepted, stream)
            received = await loop.sock_recv(sock, _FLIGHT_BYTES)
            require_some(len(received))

    def _stream(self, sock: socket.socket) -> EncryptedStream:
        from stratagem_rpc.certificates.folder import server_context

        return EncryptedStream(sock, server_context(self._certificates.current()), self._room)

    def _accepted(self, stream: EncryptedStream) -> ShownCertificate:
        from stratagem_rpc.certificates.folder import require_current, shown_certificate

        own, shown = self._certificates.current(), shown_certificate(stream.shown)
        require_current(shown, own)
        if shown.identity.cluster != own.identity.cluster:
            raise UnauthenticatedError(
                f"the certificate of {shown.identity.label} is of the cluster "
                f"{shown.identity.cluster!r}, and this server of {own.identity.cluster!r}"
            )
        return shown

    def stop(self) -> None:
        """End the thread; nobody waits for it."""
        self._thread.shutdown(wait=False)


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


# The pause after a failure to accept, for instance because all file descriptors are in use.
_PAUSE_SECONDS = 1.0

# The most connections at a time that have not proved that they are clients. A client does so within
# a round trip, so more of them mean an attack on the file descriptors.
_MOST_UNPROVED = 512

# A program has a connection for each of its calls that go on at the same time; further calls go by
# gRPC.
_MOST_OF_CLIENT = 256

# How long calls that are cancelled have to end.
_CANCEL_SECONDS = 0.5

# How often connections are looked at whose frames do not come, or whose sessions have ended.
_CHECK_SECONDS = 5.0


class SocketListener:
    """Serves a server's gRPC services over sockets, too; runs on the event loop.

    Attributes:
        offered: What it offers to the sessions of its server.
        places: Where it listens: a port, and the abstract name of a Unix socket.
        scratch: The buffer into which all peers read small frames.
        reserve: Takes bytes of the budget for shared memory.
        memory: Counts the memory of frames.
        patience: The most seconds that a client may take to send or read more of a call.
        encryption: Shakes hands with clients of other hosts; None if nothing is encrypted.
    """

    def __init__(
        self,
        services: Sequence[grpc.GenericRpcHandler],
        listening: Listening,
        memory: FrameMemory,
        reserve: Reserve = refused,
        patience: float | None = STALL_SECONDS,
        certificates: CertificateFolder | None = None,
    ) -> None:
        """Begin to serve.

        Args:
            services: The handlers of the calls.
            listening: The sockets, which `stop` closes.
            memory: Counts the memory of frames.
            reserve: Takes bytes of the budget for shared memory.
            patience: The most seconds that a client may take to send the next message of a call, or
                to read more of the answer; None for any time.
            certificates: What it shows on its data port; None for one that anybody can read.
        """
        self.offered = listening.offered
        self.scratch = bytearray(SCRATCH_BYTES)
        self.handler = lru_cache(maxsize=256)(self._find)
        self._services, self.memory, self.reserve = services, memory, reserve
        self.patience = patience
        self.encryption = Encryption(certificates) if certificates else None
        self._peers: set[Peer] = set()
        # The connections that have not proved that they are clients, in the order of their arrival.
        self._unproved: dict[Peer, None] = {}
        # The clients of the others, and how many each has.
        self._clients: dict[Peer, str] = {}
        self._counts: Counter[str] = Counter()
        self._leaving: set[asyncio.Future[None]] = set()
        # Those of sessions that were not open when this was looked at before.
        self._ended: set[Peer] = set()
        self._sockets = listening.sockets
        self.places = [*filter(None, map(served_at, self._sockets))]
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        for each in self._sockets:
            self._watch(each)
        self._checking = self._loop.call_later(_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Hang up on those whose frames do not come, and whose sessions have ended."""
        self._checking = self._loop.call_later(_CHECK_SECONDS, self._check)
        for peer in list(self._clients):
            peer.check(self._loop.time())
        ended = {each for each in self._clients if not self.memory.client_of(each.session_id)}
        # A client may open its session again by the connection that it has.
        for peer in ended & self._ended:
            self._leaving.add(leaving := asyncio.ensure_future(peer.leave()))
            leaving.add_done_callback(self._leaving.discard)
        self._ended = ended

    def _find(self, path: bytes) -> Handler | None:
        return find_handler(self._services, path)

    def _watch(self, listening: socket.socket) -> None:
        if not self._stopped:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            LOG.warning("no connection was accepted", why=str(error))
            self._loop.remove_reader(listening)
            self._loop.call_later(_PAUSE_SECONDS, self._watch, listening)
        else:
            self._begin_peer(accepted, str(address))

    def _begin_peer(self, accepted: socket.socket, who: str) -> None:
        try:
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                tune(accepted, self.patience or PATIENT_SECONDS)
            elif not is_trusted(user := user_of(accepted)):
                # Such a client uses the data port or gRPC.
                LOG.info("a process of another user was hung up on", user=user)
                return accepted.close()
        except OSError as error:
            LOG.info("a connection was gone at once", who=who, why=str(error))
            return accepted.close()
        peer = Peer(self, accepted, who)
        self._peers.add(peer)
        self._unproved[peer] = None
        if len(self._unproved) > _MOST_UNPROVED:
            next(iter(self._unproved)).refuse("too many connections have not proved themselves")

    def admit(self, peer: Peer) -> None:
        """Let a peer in that has proved that it is a client.

        Raises:
            MalformedStreamError: The client has too many connections.
        """
        client = self.memory.client(peer.session_id)
        if self._counts[client] >= _MOST_OF_CLIENT:
            raise MalformedStreamError(
                f"{client} has {_MOST_OF_CLIENT} connections, which is the share of one client"
            )
        del self._unproved[peer]
        self._clients[peer] = client
        self._counts[client] += 1

    def left(self, peer: Peer) -> None:
        """Note that a peer is gone."""
        self._peers.discard(peer)
        self._unproved.pop(peer, None)
        if client := self._clients.pop(peer, ""):
            self._counts[client] -= 1
            self._counts += Counter()

    async def stop(self, seconds: float) -> None:
        """Stop taking calls, and close all connections.

        Args:
            seconds: The most time for calls under way to be answered.
        """
        self._stopped = True
        self._checking.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            hang_up(each)
        leaving = [asyncio.ensure_future(peer.leave()) for peer in set(self._peers)]
        if leaving:
            await asyncio.wait(leaving, timeout=seconds)
        for peer in set(self._peers):
            peer.close()
        if leaving:
            # What is computed for them may not end.
            await asyncio.wait(leaving, timeout=_CANCEL_SECONDS)
        if self.encryption is not None:
            self.encryption.stop()
