"""What a primary and its backup exchange, in both directions, until one of them ends it."""

from __future__ import annotations

from typing import Protocol, TypeVar

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
