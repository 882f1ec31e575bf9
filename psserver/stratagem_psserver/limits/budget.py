"""The budget of bytes that requests may occupy."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.shares import Shares, share_of
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_psserver.environment import Clock

# To suggest when to retry: other requests are applied or sent at about this rate.
_BYTES_PER_SECOND = 1e9
_LEAST_SECONDS = 0.1


class Budget:
    """Counts the bytes of requests before they are allocated, and who has them.

    Args:
        limit: The most bytes.
        reclaim: Releases dispensable reservations; called when there are not enough bytes.
        clock: Tells when a request was refused.

    Attributes:
        limit: The same.
        largest: The most bytes that one client may have, which is the most for one request.
    """

    def __init__(
        self,
        limit: int,
        reclaim: Callable[[], object] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit, self.largest = limit, share_of(limit, 0)
        self._shares = Shares(limit)
        self._reclaim = reclaim
        self._clock = clock
        # The bytes of the last request that was refused, and when that was.
        self._refused: tuple[int, float] | None = None

    @property
    def used(self) -> int:
        """The bytes that are taken."""
        return self._shares.used

    @property
    def available(self) -> int:
        return self.limit - self.used

    def reserve(self, nbytes: int, purpose: str, client: str = "") -> Reservation:
        """Take bytes until the reservation is released.

        Args:
            nbytes: How many.
            purpose: What they are for, for messages.
            client: The label of the client whose share they count in; "" for the server itself.

        Raises:
            ResourceExhaustedError: The limit or the client's share would be exceeded.
        """
        if self._lacks(nbytes, client) > 0:
            self._reclaim()
            if self._lacks(nbytes, client) > 0:
                self._refused = nbytes, self._clock()
                raise self._refusal(nbytes, purpose, client)
        return Reservation(self, nbytes, client)

    def _lacks(self, nbytes: int, client: str) -> int:
        """Return how many bytes too few there are."""
        if not nbytes:
            return 0
        own, share = self._shares.of(client), self._shares.share(client)
        return max(nbytes - self.available, own + nbytes - share)

    def count(self, client: str, nbytes: int) -> None:
        """Note that a client has more bytes, or fewer; used by its reservations."""
        self._shares.count(client, nbytes)

    def report(self) -> pb.Budget:
        """Return the message that describes it."""
        budget = pb.Budget(used=self.used, limit=self.limit)
        if self._refused is not None:
            budget.refused, refused_at = self._refused
            budget.refused_seconds = self._clock() - refused_at
        return budget

    def _refusal(self, nbytes: int, purpose: str, client: str) -> ResourceExhaustedError:
        is_temporary = nbytes <= (self.largest if client else self.limit)
        remedy = "repeat it in a moment" if is_temporary else "ask for less"
        error = ResourceExhaustedError(
            f"{purpose} needs {nbytes} bytes; {self.used} of the budget of "
            f"{self.limit} bytes for staged and waiting data are in use{self._share_of(client)}; "
            f"{remedy}, or start the server with a larger --staged-bytes"
        )
        if is_temporary:
            in_the_way = self._lacks(nbytes, client)
            error.retry_seconds = _LEAST_SECONDS + in_the_way / _BYTES_PER_SECOND
        return error

    def _share_of(self, client: str) -> str:
        if not client:
            return ""
        return (
            f", {self._shares.of(client)} of them by {client}, whose share is "
            f"{self._shares.share(client)}: three quarters of what others leave"
        )


class Reservation:
    """Reserved bytes of a budget; a context manager that releases them at its end.

    Args:
        budget: The budget, which has as many.
        nbytes: How many.
        client: As for `Budget.reserve`.
    """

    def __init__(self, budget: Budget, nbytes: int, client: str = "") -> None:
        self._budget, self.nbytes, self._client = budget, nbytes, client
        budget.count(client, nbytes)

    def release(self) -> None:
        """Release the bytes; a repetition does nothing."""
        self._budget.count(self._client, -self.nbytes)
        self.nbytes = 0

    def hand_over(self) -> Reservation:
        """Move the bytes to a new reservation of the same client, and return it."""
        return self._moved(self._client)

    def give_up(self) -> Reservation:
        """Move the bytes to a new reservation of the server's own, and return it."""
        return self._moved("")

    def _moved(self, client: str) -> Reservation:
        successor = Reservation(self._budget, self.nbytes, client)
        self.release()
        return successor

    def absorb(self, other: Reservation) -> None:
        """Take over the bytes of another reservation of the same budget."""
        self._budget.count(self._client, other.nbytes)
        self.nbytes += other.nbytes
        other.release()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
