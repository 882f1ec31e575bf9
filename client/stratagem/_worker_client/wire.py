"""How messages of a session with a worker server travel, and the way by gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from stratagem._ps_client.traffic import TrafficMeter
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.worker_pb2_grpc import WorkerServiceStub
from stratagem_proto.wire.channel import PATIENT_CHANNEL_OPTIONS, open_channel
from stratagem_proto.wire.payloads import batches

Instructions = Iterable[pb.Instruction]


class Wire(Protocol):
    """A call of `Work`. Thread-safe; one thread reads the responses."""

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        """Return the responses as they come.

        Raises:
            grpc.RpcError: The call failed, or was cancelled.
        """

    def send(self, instructions: Instructions) -> None:
        """Send instructions, in order; nothing once the call has ended.

        Does not wait: one thread may look after many workers.
        """

    def cancel(self) -> None:
        """End the call, from any thread. May be called again."""

    def close(self) -> None:
        """Cancel, and give back what the wire needed."""


MakeWire: TypeAlias = Callable[[pb.OpenWorkerSession, TrafficMeter], Wire]
"""Begins a call with a handshake. The meter counts what is sent."""


class GrpcWire:
    """A call of `Work`; waits for a server that is not there yet.

    Args:
        address: The worker's "host:port".
        opening: The handshake.
        meter: Counts what is sent.
    """

    def __init__(self, address: str, opening: pb.OpenWorkerSession, meter: TrafficMeter) -> None:
        self._meter = meter
        self._outbox: SimpleQueue[Instructions | None] = SimpleQueue()
        self._channel = open_channel(address, PATIENT_CHANNEL_OPTIONS)
        self._call = WorkerServiceStub(self._channel).Work(
            self._requests(opening), wait_for_ready=True
        )

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        return iter(self._call)

    def send(self, instructions: Instructions) -> None:
        """Send instructions, in order; do not wait."""
        self._outbox.put(instructions)

    def cancel(self) -> None:
        """End the call, from any thread. May be called again."""
        self._outbox.put(None)
        self._call.cancel()

    def close(self) -> None:
        """Cancel, and close the channel."""
        self.cancel()
        self._channel.close()

    def _requests(self, opening: pb.OpenWorkerSession) -> Iterator[pb.WorkRequest]:
        yield pb.WorkRequest(open=opening)
        while (waiting := self._taken()) is not None:
            for batch in batches(waiting):
                request = pb.WorkRequest(instructions=batch)
                self._meter.sent(request.ByteSize())
                yield request

    def _taken(self) -> Instructions | None:
        """Return all that is to be sent now, waiting for the first; None at the end."""
        waiting = [self._outbox.get()]
        with suppress(Empty):
            while waiting[-1] is not None:
                waiting.append(self._outbox.get_nowait())
        found = [instructions for instructions in waiting if instructions is not None]
        return chain.from_iterable(found) if None not in waiting else None
