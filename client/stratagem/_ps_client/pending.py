"""A request under way, which is retried under the same number until there is an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol

import grpc

from stratagem._core.waiting import Wait
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.route import ServerRoute
from stratagem._ps_client.transport import Attempt, Style
from stratagem_proto.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    NotPrimaryError,
    ResourceExhaustedError,
    SessionLostError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.wire.status import from_rpc_error, is_transient
from stratagem_rpc.channel import Deadlines
from stratagem_rpc.sockets.client import broken


class SurvivedRequests:
    """Which kinds of changes a server has survived, and how large ones. Thread-safe.

    What ends a server is most often new to it: a program that it has not run, or a request that is
    larger than those before. A step that it has taken a thousand times is not.
    """

    def __init__(self) -> None:
        self._most: dict[Hashable, int] = {}

    def note(self, request: Request[Any]) -> None:
        kind, nbytes = _kind(request), _nbytes(request)
        if nbytes > self._most.get(kind, -1):
            self._most[kind] = nbytes

    def covers(self, request: Request[Any]) -> bool:
        """Return whether a server has carried out a request of the kind that was as large."""
        return _nbytes(request) <= self._most.get(_kind(request), -1)


def _kind(request: Request[Any]) -> Hashable:
    message = request.message
    if isinstance(message, UpdateHeader) and message.program.HasField("graph"):
        return request.method, message.program.graph.SerializeToString(deterministic=True)
    return request.method, b""


def _nbytes(request: Request[Any]) -> int:
    return request.request_nbytes + request.derived_nbytes + request.response_nbytes


_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

# Between attempts to find who serves instead: a backup takes over within about a second.
_LONGEST_SEARCH_PAUSE_SECONDS = 0.1


class Retries:
    """Decides failure by failure about one request. Times are in seconds of a monotonic clock.

    Few requests fail, so it is made at the first failure.

    Args:
        request: The request.
        peer: The server, for messages.
        seconds: How long the request is repeated after its first failure.
        replicated: Whether another process may take over from the server.

    Attributes:
        allowed: Whether it may be sent again at all.
        is_held_back: Whether it waits for a backup, because it may be what has ended the primary.
    """

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
            # Whoever reads a traceback begins with what happened, not with how it came here.
            raise error from None
        if isinstance(error, ResourceExhaustedError):
            if not has_room:
                raise error from None
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
            raise self._unanswered(error) from None
        # Twice as long each time.
        pause = min(_FIRST_PAUSE_SECONDS * (1 << min(self._failures, 10)), self._longest)
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
            full = ResourceExhaustedError(f"{self._request.method} on {self._peer}: {tried}")
            full.retry_seconds = error.retry_seconds
            return full
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


class SessionOwner(Protocol):
    """The `Connection` that sends a request, as far as the request needs to know it."""

    @property
    def route(self) -> ServerRoute: ...
    @property
    def name(self) -> str: ...
    @property
    def run(self) -> bytes: ...
    @property
    def survived(self) -> SurvivedRequests: ...
    def acknowledge(self, request: Request[Any]) -> None: ...
    def note_reached(self, reached: bytes, shown: bytes) -> None: ...
    def has_room_for(self, request: Request[Any]) -> bool: ...
    def resume(self) -> None: ...
    def meet(self) -> None: ...


class Pending(Generic[Result]):
    """A request that was sent. Ask for its `result`, or `abandon` it; once.

    A thread that was interrupted while it waited for the result may ask for it again.

    Attributes:
        attempt: What was sent last.
        sent_at: When, in seconds of `time.monotonic`.
        is_awaited: Whether a thread waits for the result.
    """

    def __init__(
        self,
        owner: SessionOwner,
        request: Request[Result],
        deadlines: Deadlines,
        on_outcome: Callable[[], None] = lambda: None,
        style: Style = Style.SENT,
    ) -> None:
        """Send the request; call `on_outcome` once it is answered or given up."""
        self._owner, self._route = owner, owner.route
        self._request = request
        self._deadlines = deadlines
        self._on_outcome: Callable[[], None] | None = on_outcome
        self._made_retries: Retries | None = None
        self._may_repeat = True
        self._wait: Wait | None = None
        self.is_awaited: bool = False
        self.attempt: Attempt = self._sent(style)

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def _retries(self) -> Retries:
        if self._made_retries is None:
            replicated = self._route.is_replicated or self._route.has_moved
            seconds = self._deadlines.connect
            self._made_retries = Retries(self._request, self._route.peer, seconds, replicated)
        return self._made_retries

    def result(self) -> Result:
        """Wait for the result.

        The request is repeated where connections fail, or, not before it says, where the server has
        no room for it at the moment.

        Raises:
            StratagemError: The server's answer.
            ResourceExhaustedError: The request is larger than the server allows, or there was no
                room for as long as requests are repeated.
            UnavailableError: It could not be reached for as long as requests are repeated; of a
                mutation it is then unknown whether it was applied.
            DeadlineExceededError: It was reached, but did not answer in that time.
            CancelledError: The connection was closed meanwhile.
            AbortedError: It is a mutation, and the server ended twice while it was under way.
        """
        if self._on_outcome is None:
            # The thread that was interrupted may have read a part of the answer.
            self.attempt = self._retry()
        if self._request.awaits or self._request.opens:
            self._await(self._request.awaits, self._request.wait)
        self.is_awaited = True
        self._route.awaited.add(self)
        try:
            result = self._answered()
            if self._request.mutates and self._route.is_replicated:
                self._owner.survived.note(self._request)
            return result
        finally:
            self.is_awaited = False
            self._route.awaited.discard(self)
            if self._wait is not None:
                self._wait.end()
            self.abandon()

    def _await(self, what: str, seconds: float) -> None:
        """Have the log tell of the wait from now on, whatever it told of before."""
        if self._wait is not None:
            self._wait.end()
        place = self._route.place
        whom = f"{what}, at {place}" if what else place
        self._wait = Wait(self._owner.name, whom, seconds or self._deadlines.connect)
        self._wait.begin()

    def push(self) -> None:
        """Send the request, if it waits for others that it could be sent with."""
        self.attempt.push()

    def abandon(self) -> None:
        """Give the request up, unless its outcome is known.

        Of a mutation it is then unknown whether it was applied.
        """
        # A thread that is interrupted here drops the function and does not call it.
        on_outcome, self._on_outcome = self._on_outcome, None
        if on_outcome is not None:
            self.attempt.call.cancel()
            on_outcome()

    def give_up_waiting(self) -> None:
        """Send the request no more after the attempt under way; in any thread."""
        self._may_repeat = False

    def _sent(self, style: Style) -> Attempt:
        self._transport, self._takeovers = self._route.transport, self._route.takeovers
        self._run = self._owner.run
        self.sent_at: float = time.monotonic()
        # A server may be silent already where it is sent.
        self._route.awaited.add(self)
        try:
            return self._route.attempt(self._request, self._deadlines, style)
        finally:
            if not self.is_awaited:
                self._route.awaited.discard(self)

    def _answered(self) -> Result:
        while True:
            try:
                return self._received()
            except StratagemError as error:
                self._require_passing(error)
                self._wait_for_server(error)
                if not self._request.opens:
                    self._owner.meet()
            self.attempt = self._retry()

    def _retry(self) -> Attempt:
        if self._request.mutates:
            self._retries.require_harmless(self._present_run)
            self._owner.acknowledge(self._request)
        return self._sent(Style.AWAITED)

    @property
    def _present_run(self) -> Hashable:
        """What a request that is sent now may end: a replica that takes over has the same run."""
        return self._owner.run, self._route.takeovers

    def _received(self) -> Result:
        peer, method, responses = self._route.peer, self._request.method, self.attempt.responses
        try:
            result = self._request.receive(responses)
            if responses.reached:
                self._owner.note_reached(responses.reached, self._request.session_id)
            return result
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer, method) from error
        except ValueError as error:
            # What grpc raises where another thread has closed the channel.
            self._route.require_open()
            if not self._transport.is_closed:
                raise
            broke = broken(error)
            raise from_rpc_error(broke, peer, method) from broke

    def _require_passing(self, error: StratagemError) -> None:
        """Raise a failure that ends the request."""
        if isinstance(error, SessionLostError) and not self._request.opens:
            self._owner.resume()
        elif not self._is_elsewhere(error):
            has_room = self._owner.has_room_for(self._request)
            # A server that was left may live on.
            run = None if self._transport.is_closed else (self._run, self._takeovers)
            self._retries.require_passing(error, run, has_room)

    def _is_elsewhere(self, error: StratagemError) -> bool:
        """Whether what answered is not who was meant, and the latter is known by now."""
        return isinstance(error, UnauthenticatedError) and self._route.finds_host(self._transport)

    def _wait_for_server(self, error: StratagemError) -> None:
        """Return once it makes sense to send the request again; raise what ends it."""
        is_found = False
        while not is_found:
            is_found = not is_unreached(error) or self._is_found(error)
            if self._route.closed.is_set():
                raise CancelledError(
                    f"{self._request.method} on {self._route.peer}: the strategy was "
                    f"closed before the answer came{self._retries.doubt}"
                ) from None
            if not self._retries.has_failed and self._deadlines.connect:
                self._await("", self._deadlines.connect)
            if self._wait is not None:
                self._wait.failure = error.message
            self._retries.allowed = self._may_repeat
            self._route.closed.wait(self._retries.pause(error, time.monotonic()))

    def _is_found(self, error: StratagemError) -> bool:
        """Look for the server; return whether it is there and may be sent the request."""
        if self._route.is_replicated and not self._deadlines.connect:
            return True  # nothing is sent again
        # Whether there is a backup by now has to be asked again.
        failed = None if self._retries.is_held_back else self._transport
        found = self._route.find(failed, error)
        self._retries.is_held_back = (
            found
            and not self._route.has_backup
            and self._retries.is_suspect(self._present_run)
            and not self._owner.survived.covers(self._request)
        )
        return found and not self._retries.is_held_back
