"""The choice among the ways to one server."""

from __future__ import annotations

import logging
import ssl
import threading
import time

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.grpc_transport import GrpcTransport
from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.transport import Attempt, Call, Transport
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_rpc.channel import ANY_SERVER, AUTO, Expected, transport_from_environment
from stratagem_rpc.sockets.client import endpoints

_LOG = logging.getLogger("stratagem")

# After any other failure, the next call may come through.
_NOBODY_THERE = (ConnectionRefusedError, FileNotFoundError, MalformedStreamError)

# Of a server that let a new connection wait too long, or that did not come to terms about
# certificates, no other is asked for meanwhile.
_COOLDOWN_SECONDS = 30.0


class ServerTransport:
    """Calls a server by sockets where that is possible, else by gRPC.

    `learn` chooses, when a session is opened. A call that finds nobody at the sockets goes by gRPC,
    as do all after it; one for which there was no time, those of the next half minute.

    Args:
        address: "host:port" of the server.
        token: The secret of the cluster, or "".
        expected: Who has to be there.

    Attributes:
        address: "host:port" of the server.
        has_learned: Whether the server has told of its sockets, if it has any.
        is_closed: Whether all calls were ended from here.
    """

    def __init__(self, address: str, token: str = "", expected: Expected = ANY_SERVER) -> None:
        self.address = address
        self.has_learned: bool = False
        self.is_closed: bool = False
        self._grpc, self._expected = GrpcTransport(address, token, expected), expected
        self._chosen: Transport = self._grpc
        # Remembered, so that what was tried in vain is not tried again.
        self._offer = FrameSockets()
        self._cools_until = 0.0
        self._setting = transport_from_environment()
        self._learning = threading.Lock()

    def learn(self, offer: FrameSockets) -> None:
        """Choose a transport by what the server says of its sockets."""
        self.has_learned = True
        # Threads that lost one session hear of the next one each.
        with uninterrupted(), self._learning:
            if offer == self._offer:
                return
            self._leave_sockets()
            self._offer, self._cools_until = offer, 0.0
            for endpoint in endpoints(offer, self.address, self._setting, expected=self._expected):
                sockets = SocketTransport(endpoint, shares=self._setting == AUTO)
                try:
                    sockets.connect()
                except (OSError, MalformedStreamError) as error:
                    _LOG.debug("%s is not called by %s: %s", self.address, endpoint.way, error)
                    continue
                self._chosen = sockets
                if self.is_closed:
                    self._leave_sockets()
                return

    def _leave_sockets(self) -> None:
        # Taken at once: another thread may do the same.
        former, self._chosen = self._chosen, self._grpc
        if former is not self._grpc:
            former.close()

    @property
    def way(self) -> str:
        """How calls go, as the setting names it; never "auto"."""
        return self._chosen.way

    def send(self, call: Call, control: bool = False) -> Attempt:
        """Begin a call, over gRPC if `control`; raise ValueError if the transport is closed."""
        chosen = self._chosen
        if control or chosen is self._grpc or (self._cools_until and self._in_cooldown()):
            return self._grpc.send(call)
        try:
            return chosen.send(call)
        except (OSError, MalformedStreamError) as error:
            _LOG.debug("%s is called by gRPC: %s", self.address, error)
            self._note_failure(error, chosen)
        return self._grpc.send(call)

    def _in_cooldown(self) -> bool:
        return time.monotonic() < self._cools_until

    def _note_failure(self, error: Exception, sockets: Transport) -> None:
        if isinstance(error, _NOBODY_THERE):
            with uninterrupted(), self._learning:
                sockets.retire()
                if self._chosen is sockets:
                    self._chosen = self._grpc
        elif isinstance(error, TimeoutError | ssl.SSLError):
            self._cools_until = time.monotonic() + _COOLDOWN_SECONDS

    def trim(self) -> None:
        self._chosen.trim()

    def retire(self) -> None:
        """Let the calls under way be the last ones over sockets."""
        self._chosen.retire()

    def close(self) -> None:
        self.is_closed = True
        self._leave_sockets()
        self._grpc.close()
