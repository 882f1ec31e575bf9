"""Where a server listens for processes of its host."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Sequence
from functools import lru_cache

import grpc

from stratagem_proto.serving.log import LOG
from stratagem_proto.serving.methods import Handler
from stratagem_proto.serving.sockets.call import find_handler
from stratagem_proto.serving.sockets.peer import Peer
from stratagem_proto.serving.sockets.peer_memory import Reserve, refused
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import STALL_SECONDS
from stratagem_proto.wire.sockets.closing import hang_up
from stratagem_proto.wire.sockets.frames import SCRATCH_BYTES

_BACKLOG = 4096
_SECRET_BYTES = 32

# After a failure to accept, for instance because all file descriptors are in use.
_PAUSE_SECONDS = 1.0


class SocketListener:
    """Serves over a Unix socket what a server serves over gRPC; on the event loop.

    The name is in the abstract namespace, so that nothing is left of a server that is
    killed, and processes in other network namespaces do not see it.

    Attributes:
        socket: What clients need to know of it.
        scratch: What all peers read small frames into.
        reserve: The budget of the memory that clients share.
        patience: Seconds that a client may take to send or read more of a call.
    """

    def __init__(
        self,
        services: Sequence[grpc.GenericRpcHandler],
        port: int,
        reserve: Reserve = refused,
        patience: float | None = STALL_SECONDS,
    ) -> None:
        """Takes a name.

        Args:
            services: What answers the calls.
            port: As of `FrameSockets`.
            reserve: The budget of the memory that clients share.
            patience: Seconds that a client may take to send the next message of a call,
                or to read more of the answer; None for any time.

        Raises:
            OSError: There are no such sockets here.
        """
        self.socket = FrameSockets(
            name=b"stratagem-" + secrets.token_hex(16).encode(),
            ticket=secrets.token_bytes(_SECRET_BYTES),
            proof=secrets.token_bytes(_SECRET_BYTES),
            port=port,
        )
        self.scratch = bytearray(SCRATCH_BYTES)
        self.handler = lru_cache(maxsize=256)(self._find)
        self._services, self.reserve = services, reserve
        self.patience = patience
        self._peers: set[Peer] = set()
        self._listening = _listening(self.socket.name)
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._watch()

    def _find(self, path: bytes) -> Handler | None:
        return find_handler(self._services, path)

    def _watch(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            LOG.warning("no local connection was accepted", why=str(error))
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_PAUSE_SECONDS, self._watch)
        else:
            accepted.setblocking(False)
            self._peers.add(Peer(self, accepted))

    def left(self, peer: Peer) -> None:
        """Takes note that a peer is gone."""
        self._peers.discard(peer)

    async def stop(self, seconds: float) -> None:
        """Takes no more calls.

        Args:
            seconds: How long those under way, and their answers, get to end.
        """
        self._stopped = True
        self._loop.remove_reader(self._listening)
        hang_up(self._listening)
        leaving = [asyncio.ensure_future(peer.leave()) for peer in set(self._peers)]
        if leaving:
            await asyncio.wait(leaving, timeout=seconds)
        for peer in set(self._peers):
            peer.close()
        if leaving:
            await asyncio.wait(leaving)


def _listening(name: bytes) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(b"\0" + name)
        listening.setblocking(False)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
