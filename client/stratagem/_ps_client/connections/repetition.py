"""Whether a request that failed is sent again, and when; without sockets, threads and clocks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import grpc

from stratagem._ps_client.requests.request import Request
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    NotPrimaryError,
    ResourceExhaustedError,
    SessionLostError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.wire.status import is_transient

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

# Between attempts to find who serves instead: a backup takes over within about a second.
_LONGEST_SEARCH_PAUSE_SECONDS = 0.1


class Repetition:
    """Decides failure by failure about one request. Times are in seconds of a monotonic clock.

    Args:
        request: The request.
        peer: The server, for messages.
        seconds: How long the request is repeated after its first failure.
        replicated: Whether another process may take over from the server.

    Attributes:
        allowed: Whether it may be sent again at all; may be changed in any thread.
        is_held_back: Whether it waits for a backup, because it may be what has ended the primary.
    """

    # One is made for each request, and rarely used.
    __slots__ = (
        "_failures",
        "_give_up_at",
        "_longest",
        "_lost_runs",
        "_peer",
        "_request",
        "_seconds",
        "allowed",
        "is_held_back",
    )

    def __init__(
        self, request: Request[Any], peer: str, seconds: float, replicated: bool = False
    ) -> None:
        self.allowed, self.is_held_back = True, False
        self._longest = _LONGEST_SEARCH_PAUSE_SECONDS if replicated else _LONGEST_PAUSE_SECONDS
        self._request, self._peer, self._seconds = request, peer, seconds
        self._failures = 0
        self._give_up_at: float | None = None
        # Those of the server during which the connection was lost.
        self._lost_runs: frozenset[Hashable] = frozenset()

    @property
    def has_failed(self) -> bool:
        """Whether the request has failed before."""
        return self._give_up_at is not None

    def require_passing(self, error: StratagemError, run: Hashable, has_room: bool) -> None:
        """Check that a failure may pass, so that it makes sense to send the request again.

        A lost session is another matter: it is opened again first.

        Args:
            error: The failure, caused by the error of the call.
            run: The run of the server that the request was sent to; None if that has not ended.
            has_room: Whether the server could take the request if it had no other.

        Raises:
            StratagemError: The failure, which is the answer.
        """
        cause = error.__cause__
        if not isinstance(cause, grpc.RpcError) or not is_transient(cause):
            raise error
        if isinstance(error, ResourceExhaustedError):
            if not has_room:
                raise error
        elif run is not None and not isinstance(error, NotPrimaryError):
            self._lost_runs |= {run}

    def pause(self, error: StratagemError, now: float) -> float:
        """Return the seconds to wait after a failure that may pass.

        Raises:
            StratagemError: The request has failed for too long, or is not allowed again.
        """
        # From the first failure on: a large request may have taken longer already.
        if self._give_up_at is None:
            self._give_up_at = now + self._seconds
        if now >= self._give_up_at or not self.allowed:
            raise self._unanswered(error) from error
        pause = min(_pause(self._failures), self._longest)
        self._failures += 1
        if isinstance(error, ResourceExhaustedError):
            return max(pause, error.retry_seconds)
        return pause

    def is_suspect(self, run: Hashable) -> bool:
        """Return whether a run before this one ended while the mutation was under way there."""
        return self._request.mutates and bool(self._lost_runs - {run})

    def require_harmless(self, run: Hashable) -> None:
        """Check that a mutation is not what has ended two runs of the server before this one.

        Raises:
            AbortedError: It may be.
        """
        over = self._lost_runs - {run}
        if len(over) > 1:
            raise AbortedError(
                f"{self._peer} ended {len(over)} times while {self._request.method} was "
                "under way there, so it is not sent again: it may be what ends the server, whose "
                "log says more. Of what it was to change nothing is known to be applied"
            )

    def _unanswered(self, error: StratagemError) -> StratagemError:
        tried = f"{error.message}; {self._trials}"
        if isinstance(error, ResourceExhaustedError):
            return ResourceExhaustedError(f"{self._request.method} on {self._peer}: {tried}")
        cls: type[StratagemError] = UnavailableError
        if isinstance(error, DeadlineExceededError):
            cls = DeadlineExceededError
        return cls(f"{tried}. Check that the server runs and that its address is right{self.doubt}")

    @property
    def _trials(self) -> str:
        if not self.allowed:
            return "not tried again, for it was given up"
        if self.is_held_back:
            return (
                f"not sent to the replica that took over: it may be what ended the one before, and "
                f"in {self._seconds:g} s there was no backup"
            )
        return f"tried for {self._seconds:g} s"

    @property
    def doubt(self) -> str:
        """What is not known of a mutation that is given up, as the end of a message."""
        if not self._request.mutates:
            return ""
        return (
            ". It is not known whether the request was applied; it will not be sent "
            "again, so read the variables before repeating it"
        )


def is_unreached(error: StratagemError) -> bool:
    """Return whether the server may be elsewhere by now, after a failure that may pass."""
    return not isinstance(error, SessionLostError | ResourceExhaustedError)


def _pause(failures: int) -> float:
    """Return the seconds to wait after some failures: twice as many each time."""
    return _FIRST_PAUSE_SECONDS * (1 << min(failures, 10))
