"""The shares of a limit: what one client may use of it, so that others can go on."""

from __future__ import annotations

from collections.abc import Callable


def share_of(limit: int, others: int) -> int:
    """Return the most that one client may use: three quarters of what the others leave.

    A client that is alone has most of the limit, and one that takes all it gets leaves something
    for each that comes after it.

    Args:
        limit: The most that all clients may use together.
        others: What all other clients use.
    """
    return max(0, limit - others) * 3 // 4


def is_used_up(limit: int, used: int, own: Callable[[], int]) -> bool:
    """Return whether a client may have no more.

    Args:
        limit: The most that all clients may use together.
        used: What they use.
        own: Returns what the client uses of it; not called while there is much left.
    """
    if used < share_of(limit, 0):
        return False
    mine = own()
    return mine >= share_of(limit, used - mine)


class Shares:
    """What each client uses of a limit.

    What the server itself uses, whose name is "", makes no client's share smaller: it can be given
    back as soon as a client needs it.

    Args:
        limit: The most that all may use together.

    Attributes:
        limit: The same.
        used: What all use together.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._by_client: dict[str, int] = {}

    def used_by(self, client: str) -> int:
        """Return what a client uses."""
        return self._by_client.get(client, 0)

    def share(self, client: str) -> int:
        """Return the most that a client may use now; the server may use all."""
        if not client:
            return self.limit
        return share_of(self.limit, self.used - self.used_by(client) - self.used_by(""))

    def lacks(self, client: str, amount: int) -> int:
        """Return how much too little there is for more of a client; not above 0 if it may have it.

        It is as much as `share` says; each request asks, so that this is all in one place.
        """
        own, of_server = self._by_client.get(client, 0), self._by_client.get("", 0)
        share = (
            max(0, self.limit - (self.used - own - of_server)) * 3 // 4 if client else self.limit
        )
        return max(self.used + amount - self.limit, own + amount - share)

    def count(self, client: str, amount: int) -> None:
        """Note that a client uses more, or less if the amount is negative."""
        self.used += amount
        now = self._by_client.get(client, 0) + amount
        if now:
            self._by_client[client] = now
        else:
            self._by_client.pop(client, None)
