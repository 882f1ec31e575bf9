"""What a primary and its backup exchange, in both directions, until one of them ends it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from stratagem_proto.v1.replication_pb2 import FollowRequest, FollowResponse

Sent = TypeVar("Sent", contravariant=True)
Received = TypeVar("Received", covariant=True)


class Channel(Protocol[Sent, Received]):
    """One end of a call by which a backup follows its primary."""

    async def send(self, message: Sent) -> None:
        """Send a message behind all others.

        Raises:
            UnavailableError: The other end is gone.
        """

    async def receive(self) -> Received:
        """Return the next message.

        Raises:
            UnavailableError: The other end is gone, or has ended the call.
        """


class Dialled(Channel[Sent, Received], Protocol[Sent, Received]):
    """The end of whoever has called."""

    async def close(self) -> None:
        """End the call; a repetition does nothing."""


class Peers(Protocol):
    """How a replica reaches the others of its task."""

    def call(self, address: str) -> Dialled[FollowRequest, FollowResponse]:
        """Call the primary at an address."""

    async def instance_at(self, address: str) -> bytes:
        """Return the instance of the replica at an address; empty if none answers."""
