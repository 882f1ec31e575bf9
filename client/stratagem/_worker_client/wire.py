"""How messages of a session with a worker server travel, and what tells how functions ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import chain
from math import inf
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

import grpc

from stratagem._ps_client.transport import TrafficMeter
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._shipping.pickling import words_of
from stratagem_proto.errors import CancelledError, MalformedStreamError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.payloads import batches
from stratagem_proto.wire.status import CallError
from stratagem_rpc.channel import ANY_SERVER, PATIENT_CHANNEL_OPTIONS, Expected, open_channel
from stratagem_rpc.proving import CHALLENGE, Proving
from stratagem_rpc.sockets.client import Endpoint, SocketLink, broken, require_ok
from stratagem_rpc.sockets.frames import FrameKind, parts
from stratagem_rpc.sockets.streams import Piece


class ClosureAnswer(NamedTuple):
    """The result of a function, or where it is.

    Attributes:
        payload: The result as it travelled; empty if it was kept, stays or was not wanted.
        staying_bytes: Its size if it stays on the worker, to be sent or copied from there; 0
            otherwise.
    """

    payload: bytes = b""
    staying_bytes: int = 0


class Reply(Protocol):
    """Takes what becomes of a request to a worker; a `Future` is one.

    Functions whose ends are only taken note of have a lighter one.
    """

    def set_running_or_notify_cancel(self) -> object:
        """Take note that it has begun."""

    def set_result(self, answer: ClosureAnswer, /) -> None:
        """Take the answer."""

    def set_exception(self, error: BaseException, /) -> None:
        """Take note of why there is none."""


class RemoteTraceback(Exception):
    """Where a function on a worker raised; printed above the error itself."""

    def __init__(self, worker: str, closure: str, traceback: str) -> None:
        super().__init__(f"\n\n{closure} on {worker}:\n\n{traceback}")


class FailureKind(Enum):
    """Why a function has no result."""

    FUNCTION = pb.FAILURE_KIND_FUNCTION
    """It raised an exception, or returned what cannot be sent."""
    INPUT = pb.FAILURE_KIND_INPUT
    """It could not be loaded, or what it uses could not."""
    CANCELLED = pb.FAILURE_KIND_CANCELLED
    """It was given up."""


class ClosureFailure(Exception):
    """A worker could not return the result of a function.

    Attributes:
        kind: Why.
        exception: What was raised there, with its class; `WorkerFunctionError` where that class
            does not travel.
        traceback: Where it was raised, as Python prints it.
    """

    def __init__(self, kind: FailureKind, exception: BaseException, traceback: str) -> None:
        words = words_of(exception)
        super().__init__(f"{type(exception).__name__}: {words}\n\n{traceback}")
        self.kind = kind
        self.exception = exception
        self.traceback = traceback


def failure_of(message: pb.Failure, task: str, outcomes: OutcomeForm) -> ClosureFailure:
    """Return what a worker's message stands for; raise `ValueError` if it is of no kind."""
    exception = outcomes.exception_of(message, task)
    return ClosureFailure(FailureKind(message.kind), exception, message.traceback)


# A longer wait makes messages larger, and keeps a worker that has nothing to run idle for as long.
# Without one, workers whose functions end at once get each function in a message of its own.
_SECONDS = 0.003

_MOST = 32

_LOG = logging.getLogger("stratagem")


class Batcher:
    """Says when one wire is to keep back what it has to send; time is an argument."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.flush = flush
        self._kept = 0
        self._since = self._flushed = -inf

    def keeps(self, now: float) -> bool:
        """Take note of something to send now, in seconds; return whether it is to wait for more.

        The first one after a pause does not: a lone one would wait for nothing.
        """
        if not self._kept:
            if now - self._flushed > _SECONDS:
                return False
            self._since = now
        self._kept += 1
        return self._kept < _MOST and now - self._since < _SECONDS

    def flushed(self, now: float) -> None:
        """Take note that all is being sent."""
        self._kept, self._flushed = 0, now

    def rest(self) -> None:
        """Take note of a pause: the program waits for what was sent."""
        self.flush()
        self._flushed = -inf


class Batchers:
    """The batchers of all wires of a coordinator. Thread-safe, but for its context.

    What is sent while this is entered, by one thread at a time, may be kept back: until the program
    waits for something, and no longer than a moment.
    """

    def __init__(self) -> None:
        self._entered = False
        # Those of wires that have sent, or kept, something since the program waited.
        self._used: set[Batcher] = set()
        self._timed = False
        # Of this kind because the garbage collector may call `close` anywhere.
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Start the thread that lets nothing wait too long."""
        threading.Thread(target=self._run, name="stratagem-batchers", daemon=True).start()

    def close(self) -> None:
        """Let the thread end. May be called anywhere, and again."""
        self._wishes.put(False)

    def __enter__(self) -> None:
        self._entered = True

    def __exit__(self, *error: object) -> None:
        self._entered = False

    def keep(self, batcher: Batcher) -> bool:
        """Return whether what a wire has to send now is to wait for more."""
        if not self._entered:
            return False
        # First: a thread that empties the set meanwhile sends what is kept.
        self._used.add(batcher)
        keeps = batcher.keeps(time.monotonic())
        if keeps and not self._timed:
            self._timed = True
            self._wishes.put(True)
        return keeps

    def hurry(self) -> None:
        """Let nothing wait any more, because the program does."""
        try:
            while self._used:
                self._used.pop().rest()
        except KeyError:
            return  # another thread was quicker

    def _run(self) -> None:
        while self._wishes.get():
            time.sleep(_SECONDS)
            self._timed = False
            for batcher in self._used.copy():
                _flush(batcher)


def _flush(batcher: Batcher) -> None:
    try:
        batcher.flush()
    except Exception:
        # The wire has ended its call. Others go on.
        _LOG.exception("nothing can be sent to a worker")


_WORK = pb.DESCRIPTOR.services_by_name["WorkerService"].methods_by_name["Work"]
_PATH = f"/{_WORK.containing_service.full_name}/{_WORK.name}"

Instructions = Iterable[pb.Instruction]


class Wire(Protocol):
    """A call of `Work`. Thread-safe; one thread reads the responses."""

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        """Return the responses as they come.

        Raises:
            grpc.RpcError: The call failed, or was cancelled.
        """

    def send(self, instructions: Instructions) -> None:
        """Send instructions, in order; nothing once the call has ended.

        Does not wait: one thread may look after many workers.
        """

    def cancel(self) -> None:
        """End the call, from any thread. May be called again."""

    def close(self) -> None:
        """Cancel, and give back what the wire needed."""


MakeWire: TypeAlias = Callable[[pb.OpenWorkerSession, TrafficMeter], Wire]
"""Begins a call with a handshake. The meter counts what is sent."""


class GrpcWire:
    """A call of `Work`; waits for a server that is not there yet."""

    def __init__(
        self,
        address: str,
        token: str,
        opening: pb.OpenWorkerSession,
        meter: TrafficMeter,
        expected: Expected = ANY_SERVER,
    ) -> None:
        self._meter, self._token, self._opening = meter, token, opening
        self._outbox: SimpleQueue[Instructions | None] = SimpleQueue()
        self._channel = open_channel(address, PATIENT_CHANNEL_OPTIONS, expected)
        self._call: grpc.Future[bytes] | grpc.Call | None = None
        self._is_over = False

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        if self._token:
            self._prove()
        work: grpc.StreamStreamMultiCallable[pb.WorkRequest, pb.WorkResponse]
        work = self._channel.stream_stream(
            _PATH, pb.WorkRequest.SerializeToString, pb.WorkResponse.FromString
        )
        call = work(self._requests(), wait_for_ready=True)
        self._wait_for(call)
        yield from call

    def _prove(self) -> None:
        proving = Proving(self._token, _WORK.name)
        challenge: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        challenge = self._channel.unary_unary(CHALLENGE)
        call = challenge.future(proving.request, wait_for_ready=True)
        self._wait_for(call)
        try:
            proving.prove(proving.verify_challenge(call.result()), self._opening.session)
        except grpc.FutureCancelledError as error:
            raise CallError.from_error(CancelledError("the call was given up")) from error

    def _wait_for(self, call: grpc.Future[bytes] | grpc.Call) -> None:
        self._call = call
        if self._is_over:
            call.cancel()

    def send(self, instructions: Instructions) -> None:
        self._outbox.put(instructions)

    def cancel(self) -> None:
        self._is_over = True
        self._outbox.put(None)
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        self.cancel()
        self._channel.close()

    def _requests(self) -> Iterator[pb.WorkRequest]:
        yield pb.WorkRequest(open=self._opening)
        while (waiting := self._taken()) is not None:
            for batch in batches(waiting):
                request = pb.WorkRequest(instructions=batch)
                self._meter.sent(request.ByteSize())
                yield request

    def _taken(self) -> Instructions | None:
        """Return all that is to be sent now, waiting for the first; None at the end."""
        waiting = [self._outbox.get()]
        with suppress(Empty):
            while waiting[-1] is not None:
                waiting.append(self._outbox.get_nowait())
        found = [instructions for instructions in waiting if instructions is not None]
        return chain.from_iterable(found) if None not in waiting else None


_NAME = "stratagem-work-writer"


class SocketWire:
    """A call of `Work`, which each sending thread writes itself: no other thread is woken.

    Only what the socket has no room for is left to a thread, for as long as it takes.

    Attributes:
        way: The transport, as the setting names it.

    Raises:
        OSError: Nobody, or not the worker, answers there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        batchers: Batchers,
        token: str,
        opening: pb.OpenWorkerSession,
        meter: TrafficMeter,
    ) -> None:
        self.way = endpoint.way
        self._batchers, self._batcher = batchers, Batcher(self._flush)
        self._meter = meter
        self._waiting: deque[Instructions] = deque()
        self._sending = threading.Lock()
        self._reading = False
        self._link = SocketLink(endpoint)
        try:
            if token:
                self._prove(token, opening, time.monotonic() + endpoint.seconds)
            self._link.allow(None)
            message = pb.WorkRequest(open=opening).SerializeToString()
            self._link.send(FrameKind.CALL, message, is_last=False, path=_PATH.encode())
        except BaseException:
            self._link.close()
            raise

    def _prove(self, token: str, opening: pb.OpenWorkerSession, deadline: float) -> None:
        proving = Proving(token, _WORK.name)
        self._link.send(FrameKind.CALL, proving.request, is_last=True, path=CHALLENGE.encode())
        answer = self._link.receive(deadline)
        try:
            if answer.kind == FrameKind.STATUS:
                require_ok(answer)
            proving.prove(proving.verify_challenge(bytes(answer.message)), opening.session)
        except grpc.RpcError as error:
            raise ConnectionRefusedError(str(error)) from error

    def __iter__(self) -> Iterator[pb.WorkResponse]:
        try:
            for frame in self._link.frames():
                if frame.kind == FrameKind.STATUS:
                    return require_ok(frame)
                response = pb.WorkResponse.FromString(bytes(frame.message))
                # What the end of functions leads to is sent together.
                self._reading = True
                yield response
                self._reading = False
                self._flush()
        except (OSError, MalformedStreamError) as error:
            raise broken(error) from error

    def send(self, instructions: Instructions) -> None:
        self._waiting.append(instructions)
        if not self._reading and not self._batchers.keep(self._batcher):
            self._flush()

    def _flush(self) -> None:
        # A thread that comes while another one sends leaves it to that one.
        while self._waiting and self._sending.acquire(blocking=False):
            # Before anything is taken: what comes meanwhile is kept, or sent below.
            self._batcher.flushed(time.monotonic())
            rest: Iterator[Piece] | None = None
            try:
                rest = self._link.send_at_once(self._pieces())
            except BaseException as error:
                self._break_off(error)
            finally:
                if rest is None:
                    self._sending.release()
            if rest is not None:
                target = partial(self._send_rest, rest)
                return threading.Thread(target=target, name=_NAME, daemon=True).start()

    def _send_rest(self, rest: Iterator[Piece]) -> None:
        try:
            self._link.send_rest(rest)
        except BaseException as error:
            self._break_off(error)
        self._sending.release()
        self._flush()

    def _break_off(self, error: BaseException) -> None:
        """End the call, as a frame may have been sent in part."""
        self.cancel()
        if not isinstance(error, OSError):  # of which the reading thread learns
            raise error

    def _pieces(self) -> Iterator[bytes]:
        count = range(len(self._waiting))
        taken = chain.from_iterable([self._waiting.popleft() for _ in count])
        for batch in batches(taken):
            message = pb.WorkRequest(instructions=batch).SerializeToString()
            self._meter.sent(len(message))
            yield from parts(FrameKind.MESSAGE, message, is_last=False)

    def cancel(self) -> None:
        self._link.close()

    def close(self) -> None:
        self.cancel()
