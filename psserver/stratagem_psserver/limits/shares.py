"""The shares of a limit: what one client may use of it, so that others can go on."""

from __future__ import annotations


def share_of(limit: int, others: int) -> int:
    """Return the most that one client may use: three quarters of what the others leave.

    A client that is alone has most of the limit, and one that takes all it gets leaves something
    for each that comes after it.

    Args:
        limit: The most that all clients may use together.
        others: What all other clients use.
    """
    return max(0, limit - others) * 3 // 4


class Shares:
    """What each client uses of a limit.

    The server itself, whose name is "", may use whatever is left.

    Args:
        limit: The most that all may use together.

    Attributes:
        limit: The same.
        used: What all use together.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._by_client: dict[str, int] = {}

    @property
    def left(self) -> int:
        """What nobody uses."""
        return self.limit - self.used

    def of(self, client: str) -> int:
        """Return what a client uses."""
        return self._by_client.get(client, 0)

    def share(self, client: str) -> int:
        """Return the most that a client may use now."""
        others = self.used - self.of(client)
        return share_of(self.limit, others) if client else self.limit - others

    def count(self, client: str, amount: int) -> None:
        """Note that a client uses more, or less if the amount is negative."""
        self.used += amount
        now = self.of(client) + amount
        if now:
            self._by_client[client] = now
        else:
            self._by_client.pop(client, None)
