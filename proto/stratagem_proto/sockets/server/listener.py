"""Accepting the connections of clients at the sockets of a server."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import grpc

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.server_log import LOG
from stratagem_proto.sockets.closing import hang_up, served_at, tune
from stratagem_proto.sockets.frames import SCRATCH_BYTES
from stratagem_proto.sockets.server.call import Handler, find_handler
from stratagem_proto.sockets.server.encryption import Encryption
from stratagem_proto.sockets.server.frame_memory import FrameMemory
from stratagem_proto.sockets.server.listening import Listening
from stratagem_proto.sockets.server.peer import Peer
from stratagem_proto.sockets.server.peer_memory import Reserve, refused
from stratagem_proto.sockets.server.user import is_trusted, user_of
from stratagem_proto.wire.channel import PATIENT_SECONDS, STALL_SECONDS

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder

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
