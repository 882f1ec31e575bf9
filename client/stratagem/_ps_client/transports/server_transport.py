"""The choice among the ways to one server."""

from __future__ import annotations

import logging
import ssl
import threading
import time

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.transports.call import Attempt, Call
from stratagem._ps_client.transports.grpc_transport import GrpcTransport
from stratagem._ps_client.transports.socket_transport import SocketTransport
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.client import endpoints
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import (
    ANY_SERVER,
    AUTO,
    GRPC,
    Expected,
    transport_from_environment,
)

_LOG = logging.getLogger("stratagem")

# After any other failure, the next call may come through.
_NOBODY_THERE = (ConnectionRefusedError, FileNotFoundError, MalformedStreamError)

# Of a server that let a new connection wait too long, or that did not come to terms about
# certificates, no other is asked for meanwhile.
_REST_SECONDS = 30.0


class ServerTransport:
    """Calls a server over sockets where that is possible, else by gRPC.

    Args:
        address: "host:port" of the server.
        token: The secret of the cluster, or "".
        expected: Who has to be there.

    Attributes:
        address: "host:port" of the server.
        is_told: Whether the server has told of its sockets, if it has any.
        is_closed: Whether all calls were ended from here.
    """

    def __init__(self, address: str, token: str = "", expected: Expected = ANY_SERVER) -> None:
        self.address = address
        self.is_told: bool = False
        self.is_closed: bool = False
        self._grpc, self._expected = GrpcTransport(address, token, expected), expected
        self._sockets: SocketTransport | None = None
        # Remembered, so that what was tried in vain is not tried again.
        self._told = FrameSockets()
        self._rests_until = 0.0
        self._setting = transport_from_environment()
        self._learning = threading.Lock()

    def learn(self, told: FrameSockets) -> None:
        """Connect to what the server says of its sockets, if that is possible."""
        self.is_told = True
        # Threads that lost one session hear of the next one each.
        with uninterrupted(), self._learning:
            if told != self._told:
                self._forget()
                self._told, self._rests_until = told, 0.0
                self._connect(told)

    def _connect(self, told: FrameSockets) -> None:
        for endpoint in endpoints(told, self.address, self._setting, expected=self._expected):
            sockets = SocketTransport(endpoint, shares=self._setting == AUTO)
            try:
                sockets.connect()
            except (OSError, MalformedStreamError) as error:
                _LOG.debug("%s is not called by %s: %s", self.address, endpoint.way, error)
            else:
                self._sockets = sockets
                if self.is_closed:
                    self._forget()
                return

    @property
    def way(self) -> str:
        """How calls go, as the setting names it; never "auto"."""
        sockets = self._sockets
        return sockets.endpoint.way if sockets else GRPC

    def _forget(self) -> None:
        # Taken at once: another thread may do the same.
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()

    def send(self, call: Call, control: bool = False) -> Attempt:
        """Begin a call, over gRPC if `control`; raise ValueError if the transport is closed."""
        sockets = None if control else self._sockets
        if sockets is not None and not self._rests():
            try:
                return sockets.send(call)
            except (OSError, MalformedStreamError) as error:
                _LOG.debug("%s is called by gRPC: %s", self.address, error)
                self._weigh(error, sockets)
        return self._grpc.send(call)

    def _rests(self) -> bool:
        return bool(self._rests_until) and time.monotonic() < self._rests_until

    def _weigh(self, error: Exception, sockets: SocketTransport) -> None:
        if isinstance(error, _NOBODY_THERE):
            self._give_up(sockets)
        elif isinstance(error, TimeoutError | ssl.SSLError):
            self._rests_until = time.monotonic() + _REST_SECONDS

    def _give_up(self, sockets: SocketTransport) -> None:
        with uninterrupted(), self._learning:
            sockets.retire()
            if self._sockets is sockets:
                self._sockets = None

    def trim(self) -> None:
        """Give up memory that was not used lately; called now and then."""
        if sockets := self._sockets:
            sockets.trim()

    def retire(self) -> None:
        """Let the calls under way be the last ones over sockets."""
        if sockets := self._sockets:
            sockets.retire()

    def close(self) -> None:
        """End all calls; none can be begun any more."""
        self.is_closed = True
        self._forget()
        self._grpc.close()
