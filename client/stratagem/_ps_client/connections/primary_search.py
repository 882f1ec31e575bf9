"""The search for the replica that serves a task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import grpc

from stratagem._core.waiting import uninterrupted
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.asking import Answer, begin_status
from stratagem_proto.wire.channel import Expected, LastingChannel

# A replica that does not say so sooner is busy, stopped or cut off, and asked again.
_SECONDS = 0.5

_Answer = tuple[str, GetStatusResponse | None]


class PrimaryAddress(NamedTuple):
    """The replica that serves a task.

    Attributes:
        address: The "host:port" by which this process knows it.
        epoch: The epoch of the view that says so; 0 of a server that has no replicas.
        has_backup: Whether another replica has all that it acknowledges, as far as is known.
        instance: Which state it serves, as in the view; empty if that is not known.
    """

    address: str
    epoch: int
    has_backup: bool = True
    instance: bytes = b""


class PrimarySearch:
    """Asks replicas which of them is the primary. Thread-safe.

    It keeps a channel to each, since it asks again and again while one takes over.
    """

    def __init__(self, addresses: Sequence[str], token: str, expected: Expected) -> None:
        """Ask nothing yet.

        Args:
            addresses: Where the replicas are.
            token: The secret of the cluster.
            expected: The task that they are replicas of.
        """
        self._addresses, self._token, self._expected = addresses, token, expected
        self._channels: dict[str, LastingChannel] = {}
        self._closed = False
        self._opening = threading.Lock()

    def find(self, epoch: int) -> PrimaryAddress | None:
        """Return the replica that says first that it is the primary; None if none does in time.

        Args:
            epoch: What is older is not believed.
        """
        answers: SimpleQueue[_Answer] = SimpleQueue()
        calls = [self._asked(address, answers.put) for address in self._addresses]
        try:
            # Each call ends at its deadline.
            for _ in calls:
                primary = _primary(*answers.get())
                if primary is not None and primary.epoch >= epoch:
                    return primary
            return None
        finally:
            with uninterrupted():
                for call in calls:
                    call.cancel()

    def _asked(
        self, address: str, answered: Callable[[_Answer], None]
    ) -> Answer[GetStatusResponse]:
        with uninterrupted():
            call = begin_status(self._channel(address), self._token, _SECONDS)
            call.add_done_callback(partial(_tell, address, answered))
            return call

    def _channel(self, address: str) -> grpc.Channel:
        with self._opening:
            if self._closed:
                raise ValueError("the search is closed")
            if address not in self._channels:
                self._channels[address] = LastingChannel(address, self._expected)
            return self._channels[address].get()

    def close(self) -> None:
        """Ask no more; `find` then raises ValueError."""
        with uninterrupted(), self._opening:
            self._closed = True
            for channel in self._channels.values():
                channel.close()


def _tell(
    address: str, answered: Callable[[_Answer], None], call: Future[GetStatusResponse]
) -> None:
    try:
        answered((address, call.result()))
    except grpc.RpcError:
        answered((address, None))


def _primary(address: str, status: GetStatusResponse | None) -> PrimaryAddress | None:
    """Return what a replica's answer says of it, if it is the primary."""
    if status is None:
        return None
    server = status.parameter_server
    if not server.HasField("replication"):
        return PrimaryAddress(address, 0)
    found = server.replication
    if found.standing != STANDING_PRIMARY:
        return None
    view = found.view
    return PrimaryAddress(address, view.epoch, view.HasField("backup"), found.replica.instance)
