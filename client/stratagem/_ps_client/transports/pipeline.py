"""A socket on which calls follow each other before they are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from stratagem._ps_client.transports.call import Attempt, Call, Responses
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.client import Endpoint, SocketLink, broken, require_ok
from stratagem_proto.sockets.frames import FrameKind, SocketFrame, parts


class Pipeline:
    """Sends calls of one message, whose answers are asked for in the same order.

    Calls are kept until they are pushed on, which comes before their answers are asked for. Those
    that follow each other closely are then sent, and read, at once.

    One thread at a time sends or pushes, and one at a time receives. Where one call fails to come
    through, or is given up, so do all that are under way.

    The constructor raises OSError if nobody, or not the server, answers at the endpoint.
    """

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._link = SocketLink(endpoint, seconds)
        self._kept: list[bytes] = []
        self._failure: OSError | None = None
        self._sent = self._answered = 0
        self._leaves = False
        self.is_broken = False

    def send(self, call: Call) -> Attempt:
        """Take a call in; where it cannot be sent, its responses say so."""
        try:
            self._link.allow(call.timeout)
        except OSError as error:
            self._fail(error)
        (message,) = call.encode(None)
        self._kept += parts(FrameKind.CALL, message, is_last=True, path=call.path.encode())
        self._sent += 1
        turn = _Turn(self)
        return Attempt(Responses(turn.responses()), turn, self.push)

    def push(self) -> None:
        """Send what is kept."""
        kept, self._kept = b"".join(self._kept), []
        if kept:
            try:
                self._link.send_all((kept,))
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Break the connection off, as nothing can be sent."""
        self._failure = error
        self.break_off()

    def next_frame(self) -> SocketFrame:
        """Wait for the next answer; raise OSError or MalformedStreamError if none comes."""
        if self._failure is not None:
            raise self._failure
        frame = self._link.receive()
        self._answered += 1
        self._close_if_over()
        return frame

    @property
    def is_worn(self) -> bool:
        """Whether calls to come should go by another pipeline."""
        return self._link.is_worn

    def leave(self) -> None:
        """Take no more calls; the last answer closes the connection."""
        self.push()
        self._leaves = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._leaves and self._answered == self._sent:
            self.break_off()

    def break_off(self) -> None:
        """Give up all that is under way. May be called again."""
        self.is_broken = True
        self._link.close()


class _Turn:
    """One call; its answer is the next one when it is asked for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._answered = False

    def responses(self) -> Iterator[bytes]:
        """Yield the one response; raise CallError if the call failed."""
        frame = self._answer()
        if frame.kind == FrameKind.STATUS:
            return require_ok(frame)
        yield cast(bytes, frame.message)

    def _answer(self) -> SocketFrame:
        try:
            frame = self._pipeline.next_frame()
        except (OSError, MalformedStreamError) as error:
            raise broken(error) from error
        self._answered = True
        return frame

    def cancel(self) -> None:
        """Give the call up, if it has not ended."""
        if not self._answered:
            self._pipeline.break_off()
