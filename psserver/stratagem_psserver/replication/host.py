"""The server whose replica leads or follows."""

from __future__ import annotations

from typing import Protocol

from stratagem_psserver.state import ServerState


class Host(Protocol):
    """A server whose state can be exchanged, and which answers clients or refuses them."""

    @property
    def state(self) -> ServerState:
        """The state that clients have access to while they are answered."""

    def fresh_state(self) -> ServerState:
        """Return another state, which is empty and which no client has access to."""

    def adopt(self, state: ServerState) -> None:
        """Replace the state by another one; whoever waits in the former is refused."""

    def obstacle(self) -> str:
        """Return what would be lost if another server went on with the state; "" if nothing."""

    def serve(self) -> None:
        """Answer clients from now on."""

    def refuse(self) -> None:
        """Refuse clients from now on, and tell them where the primary is."""
