"""The thread that calls one replica, again and again, for as long as the chief is to decide."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.v1.arbitration_pb2 import (
    DESCRIPTOR,
    ArbitrateRequest,
    ArbitrateResponse,
    ChiefIntroduction,
)
from stratagem_proto.wire.channel import CHANNEL_OPTIONS, Expected, open_channel
from stratagem_proto.wire.proving import prove_now
from stratagem_proto.wire.status import from_rpc_error, is_transient

_LOG = logging.getLogger("stratagem")

_SERVICE = DESCRIPTOR.services_by_name["ArbitrationService"].full_name
_PATH = f"/{_SERVICE}/Arbitrate"

# Between calls of a replica that is away, and of one that refuses until somebody does something.
_PAUSE_SECONDS = 0.25
_REFUSED_PAUSES = 20

# A replica that sends no challenge in this time is called again.
_PROVING_SECONDS = 5.0


class Desk(Protocol):
    """Who is told of what a replica says, in the thread of its caller."""

    def received(self, caller: ReplicaCaller, message: ArbitrateResponse) -> None:
        """Take a message of the replica."""

    def ended(self, caller: ReplicaCaller) -> None:
        """Note that the call has ended."""


class ReplicaCaller:
    """Keeps a call to one replica open. Thread-safe.

    Attributes:
        address: The "host:port" of the replica.
    """

    def __init__(
        self, address: str, introduction: ChiefIntroduction, token: str, desk: Desk
    ) -> None:
        """Call nobody yet.

        Args:
            address: Where the replica is.
            introduction: Who calls.
            token: The secret of the cluster.
            desk: Is told of what it says.
        """
        self.address, self._token, self._desk = address, token, desk
        server = introduction.server
        self._peer = f"/job:{server.job}/task:{server.index} at {address}"
        self._introduction = introduction
        self._channel = open_channel(address, CHANNEL_OPTIONS, Expected(server.job, server.index))
        self._messages: SimpleQueue[ArbitrateRequest | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._trouble = ""

    def start(self) -> None:
        """Start the thread; may be called once."""
        threading.Thread(target=self._run, name="stratagem-arbiter", daemon=True).start()

    def send(self, message: ArbitrateRequest) -> None:
        """Send a message behind all others of the present call."""
        self._messages.put(message)

    def stop(self) -> None:
        """End the call, and call no more; do not wait."""
        self._stopped.set()
        self._channel.close()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            pause = _PAUSE_SECONDS
            try:
                self._call()
            except grpc.RpcError as error:
                if _is_elsewhere(error):
                    return
                if not is_transient(error):
                    self._note(from_rpc_error(error, self._peer, "Arbitrate").message)
                    pause *= _REFUSED_PAUSES
            except DecodeError as error:
                self._note(f"{self._peer} does not speak as a replica: {error}")
                pause *= _REFUSED_PAUSES
            except ValueError:
                # The channel was closed.
                return

    def _call(self) -> None:
        messages: SimpleQueue[ArbitrateRequest | None] = SimpleQueue()
        messages.put(self._proved())
        self._messages = messages
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(_PATH)
        try:
            for data in method(_until_none(messages.get)):
                self._trouble = ""
                self._desk.received(self, ArbitrateResponse.FromString(data))
        finally:
            # The thread that sends ends as well.
            messages.put(None)
            self._desk.ended(self)

    def _proved(self) -> ArbitrateRequest:
        request = ArbitrateRequest(introduction=self._introduction)
        asking = request.introduction.asking
        prove_now(self._channel, self._token, "Arbitrate", asking, _PROVING_SECONDS)
        return request

    def _note(self, trouble: str) -> None:
        """Tell people why the replica does not let this chief decide, once."""
        if trouble != self._trouble:
            _LOG.warning("cannot decide which replica serves: %s", trouble)
        self._trouble = trouble


def _is_elsewhere(error: grpc.RpcError) -> bool:
    """Return whether the replica has another arbiter."""
    call: grpc.Call = error  # type: ignore[assignment]  # RpcErrors of calls are calls
    return call.code() == grpc.StatusCode.UNIMPLEMENTED


def _until_none(
    next_message: Callable[[], ArbitrateRequest | None],
) -> Iterator[bytes]:
    while (message := next_message()) is not None:
        yield message.SerializeToString()
