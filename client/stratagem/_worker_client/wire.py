"""What carries a session with a worker server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from stratagem._ps_client.traffic import TrafficMeter
from stratagem_proto.v1 import worker_pb2 as pb

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
