"""A request under way, repeated under the same number until there is an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol

import grpc

from stratagem._core.waiting import Wait
from stratagem._ps_client.connections.experience import Experience
from stratagem._ps_client.connections.repetition import Repetition, is_unreached
from stratagem._ps_client.connections.route import ServerRoute
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.transports.call import Attempt, Style
from stratagem_proto.errors import CancelledError, SessionLostError, StratagemError
from stratagem_proto.sockets.client import broken
from stratagem_proto.wire.channel import Deadlines
from stratagem_proto.wire.status import from_rpc_error


class SessionOwner(Protocol):
    """The connection that sends a request, as far as the request needs to know it."""

    @property
    def route(self) -> ServerRoute:
        """The way to the server."""

    @property
    def name(self) -> str:
        """The name of this process in the log."""

    @property
    def run(self) -> bytes:
        """The run of the server that the session is with; empty for none."""

    def acknowledge(self, request: Request[Any]) -> None:
        """Tell with a repeated mutation which ones need no answer any more."""

    def note_reached(self, reached: bytes, shown: bytes) -> None:
        """Note how far the server had come when it answered a request that showed something."""

    @property
    def experience(self) -> Experience:
        """What the server has carried out for this process."""

    def has_room_for(self, request: Request[Any]) -> bool:
        """Return whether the server could take the request if it had no other."""

    def resume(self) -> None:
        """Open the session again after the server has ended it."""

    def meet(self) -> None:
        """Shake hands where the task has moved to; raise nothing."""


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
        self._repetition = Repetition(
            request, self._route.peer, deadlines.connect, self._may_be_elsewhere
        )
        self._wait: Wait | None = None
        self.is_awaited: bool = False
        self.attempt: Attempt = self._sent(style)

    @property
    def _may_be_elsewhere(self) -> bool:
        return self._route.is_replicated or self._route.has_moved

    @property
    def method(self) -> str:
        """The RPC's name."""
        return self._request.method

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
            self.attempt = self._anew()
        if self._request.awaits or self._request.opens:
            self._await(self._request.awaits, self._request.wait)
        self.is_awaited = True
        self._route.awaited.add(self)
        try:
            result = self._repeated()
            if self._request.mutates and self._route.is_replicated:
                self._owner.experience.note(self._request)
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
        self._repetition.allowed = False

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

    def _repeated(self) -> Result:
        while True:
            try:
                return self._received()
            except StratagemError as error:
                self._require_passing(error)
                self._wait_for_server(error)
                if not self._request.opens:
                    self._owner.meet()
            self.attempt = self._anew()

    def _anew(self) -> Attempt:
        if self._request.mutates:
            self._repetition.require_harmless(self._present_run)
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
        else:
            has_room = self._owner.has_room_for(self._request)
            # A server that was left may live on.
            run = None if self._transport.is_closed else (self._run, self._takeovers)
            self._repetition.require_passing(error, run, has_room)

    def _wait_for_server(self, error: StratagemError) -> None:
        """Return once it makes sense to send the request again; raise what ends it."""
        is_found = False
        while not is_found:
            is_found = not is_unreached(error) or self._is_found(error)
            if self._route.closed.is_set():
                raise CancelledError(
                    f"{self._request.method} on {self._route.peer}: the strategy was "
                    f"closed before the answer came{self._repetition.doubt}"
                ) from error
            if not self._repetition.has_failed and self._deadlines.connect:
                self._await("", self._deadlines.connect)
            if self._wait is not None:
                self._wait.failure = error.message
            self._route.closed.wait(self._repetition.pause(error, time.monotonic()))

    def _is_found(self, error: StratagemError) -> bool:
        """Look for the server; return whether it is there and may be sent the request."""
        if self._route.is_replicated and not self._deadlines.connect:
            return True  # nothing is sent again
        # Whether there is a backup by now has to be asked again.
        failed = None if self._repetition.is_held_back else self._transport
        found = self._route.find(failed, error)
        self._repetition.is_held_back = (
            found
            and not self._route.has_backup
            and self._repetition.is_suspect(self._present_run)
            and not self._owner.experience.covers(self._request)
        )
        return found and not self._repetition.is_held_back
