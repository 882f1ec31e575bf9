"""The choice among the ways to one server."""

from __future__ import annotations

import logging
import threading

from stratagem._servers.transports.call import Attempt, Call
from stratagem._servers.transports.grpc_transport import GrpcTransport
from stratagem._servers.transports.socket_transport import SocketTransport
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.transport import AUTO, GRPC, transport_from_environment

_LOG = logging.getLogger("stratagem")

# After any other failure, the next call may come through.
_NOBODY_THERE = (ConnectionRefusedError, FileNotFoundError, MalformedStreamError)


class ServerTransport:
    """Calls a server over a socket where there is one, else by gRPC.

    Attributes:
        address: "host:port" of the server.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._grpc = GrpcTransport(address)
        self._local: SocketTransport | None = None
        self._setting = transport_from_environment()
        self._closed = False
        self._learning = threading.Lock()

    def learn(self, place: FrameSockets) -> None:
        """Connects to what the server says of its socket, if that is possible."""
        with self._learning:  # threads that lost one session hear of the next one each
            if self._local is None or self._local.place != place:
                self._forget()
                self._connect(place)

    def _connect(self, place: FrameSockets) -> None:
        if self._setting == GRPC or not may_connect(place, self.address):
            return
        local = SocketTransport(place, shares=self._setting == AUTO)
        try:
            local.connect()
        except (OSError, MalformedStreamError) as error:
            _LOG.debug("%s is called by gRPC: %s", self.address, error)
        else:
            self._local = local
            if self._closed:
                self._forget()

    @property
    def is_local(self) -> bool:
        """Whether calls go over a socket."""
        return self._local is not None

    def _forget(self) -> None:
        # Taken at once: another thread may do the same.
        local, self._local = self._local, None
        if local is not None:
            local.close()

    def send(self, call: Call, control: bool = False) -> Attempt:
        """Begins a call.

        Args:
            call: The call.
            control: Whether it must go by gRPC.

        Raises:
            ValueError: The transport is closed.
        """
        local = None if control else self._local
        if local is not None:
            try:
                return local.send(call)
            except (OSError, MalformedStreamError) as error:
                _LOG.debug("%s is called by gRPC: %s", self.address, error)
                if isinstance(error, _NOBODY_THERE):
                    self._give_up(local)
        return self._grpc.send(call)

    def _give_up(self, local: SocketTransport) -> None:
        local.retire()
        with self._learning:
            if self._local is local:
                self._local = None

    def trim(self) -> None:
        """Gives up memory that was not used lately; called now and then."""
        if local := self._local:
            local.trim()

    def retire(self) -> None:
        """Lets the calls under way be the last ones over a socket."""
        if local := self._local:
            local.retire()

    def close(self) -> None:
        """Ends all calls; none can be begun any more."""
        self._closed = True
        self._forget()
        self._grpc.close()


def may_connect(place: FrameSockets, address: str) -> bool:
    """Whether a server says of a socket that clients of an address may try.

    Args:
        place: What it says.
        address: The "host:port" by which it was called. At another port than its own
            there is a proxy, which is not to be passed by.
    """
    return bool(place.name) and address.endswith(f":{place.port}")
