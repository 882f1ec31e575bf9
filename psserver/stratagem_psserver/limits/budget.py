"""The budget of bytes that requests may occupy."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_psserver.environment import Clock

# To suggest when to retry: other requests are applied or sent at about this rate.
_BYTES_PER_SECOND = 1e9
_LEAST_SECONDS = 0.1


class Budget:
    """Counts the bytes of requests before they are allocated.

    Args:
        limit: The most bytes.
        reclaim: Releases dispensable reservations; called when there are not enough bytes.
        clock: Tells when a request was refused.
    """

    def __init__(
        self,
        limit: int,
        reclaim: Callable[[], object] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit = limit
        self.used = 0
        self._reclaim = reclaim
        self._clock = clock
        # The bytes of the last request that was refused, and when that was.
        self._refused: tuple[int, float] | None = None

    @property
    def available(self) -> int:
        return self.limit - self.used

    def reserve(self, nbytes: int, purpose: str) -> Reservation:
        """Take bytes until the reservation is released.

        Raises:
            ResourceExhaustedError: The limit would be exceeded.
        """
        if nbytes > self.available:
            self._reclaim()
            if nbytes > self.available:
                self._refused = nbytes, self._clock()
                raise self._refusal(nbytes, purpose)
        return Reservation(self, nbytes)

    def report(self) -> pb.Budget:
        """Return the message that describes it."""
        budget = pb.Budget(used=self.used, limit=self.limit)
        if self._refused is not None:
            budget.refused, refused_at = self._refused
            budget.refused_seconds = self._clock() - refused_at
        return budget

    def _refusal(self, nbytes: int, purpose: str) -> ResourceExhaustedError:
        is_temporary = nbytes <= self.limit
        remedy = "repeat it in a moment" if is_temporary else "ask for less"
        error = ResourceExhaustedError(
            f"{purpose} needs {nbytes} bytes; {self.used} of the budget of "
            f"{self.limit} bytes for staged and waiting data are in use; {remedy}, "
            "or start the server with a larger --staged-bytes"
        )
        if is_temporary:
            in_the_way = nbytes - self.available
            error.retry_seconds = _LEAST_SECONDS + in_the_way / _BYTES_PER_SECOND
        return error


class Reservation:
    """Reserved bytes of a budget; a context manager that releases them at its end."""

    def __init__(self, budget: Budget, nbytes: int) -> None:
        self._budget, self.nbytes = budget, nbytes
        budget.used += nbytes

    def release(self) -> None:
        """Release the bytes; a repetition does nothing."""
        self._budget.used -= self.nbytes
        self.nbytes = 0

    def hand_over(self) -> Reservation:
        """Move the bytes to a new reservation, and return it."""
        successor = Reservation(self._budget, self.nbytes)
        self.release()
        return successor

    def absorb(self, other: Reservation) -> None:
        """Take over the bytes of another reservation of the same budget."""
        self.nbytes += other.nbytes
        other.nbytes = 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
