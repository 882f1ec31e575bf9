"""One session with one worker server."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeAlias

from stratagem._ps_client.traffic import TrafficMeter
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._worker_client.closure_failure import ClosureAnswer, Reply, failure_of
from stratagem._worker_client.wire import Instructions, Wire
from stratagem_proto.errors import (
    CancelledError,
    MalformedStreamError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
    WorkerLostError,
)
from stratagem_proto.memory import half_of_memory
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.payloads import Pieces
from stratagem_proto.wire.status import translated

Show = Callable[[str, str], None]
"""Takes "stdout", "stderr" or the name of a level of the log, and a text."""

_OUTPUT_LOG = logging.getLogger("stratagem.worker")

_STREAMS = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}


def stream_of(output: pb.Output) -> str:
    """Return the name of where a function wrote."""
    return _STREAMS.get(output.stream) or logging.getLevelName(output.level)


def labelled(label: str) -> Show:
    """Return what shows each line behind the name of its worker.

    Standard output and standard error go to this program's own, and the log to its logger
    "stratagem.worker".
    """

    def show(stream: str, text: str) -> None:
        if stream in _STREAMS.values():
            # A line of one worker must not pass for that of another. One call for all: other
            # workers write at the same time. And this program may have closed its own streams.
            lines = "".join(f"{label} | {line}\n" for line in text.splitlines() or [""])
            with suppress(OSError, ValueError):
                getattr(sys, stream).write(lines)
            return
        level = logging.getLevelName(stream)
        _OUTPUT_LOG.log(level if isinstance(level, int) else logging.INFO, "%s | %s", label, text)

    return show


_LOG = logging.getLogger("stratagem")

OnReached: TypeAlias = Callable[[Mapping[int, bytes]], None]
"""Called with how far parameter servers had come when they answered a worker, by task index."""

# A worker is asked for a sign of life, and looked at, this often within its lease.
_BEATS = 4

_SHORTEST_LEASE, _LONGEST_LEASE = 1e-3, 1e6
"""Seconds; another lease would make this program busy, or patient without end."""


class WorkStream:
    """A call of `Work`: instructions there, events back. Thread-safe.

    Attributes:
        ending: Why the session ended, once it has.
        leaving: Done once the worker has said that it is about to stop.
    """

    def __init__(
        self,
        wire: Wire,
        peer: str,
        show: Show,
        meter: TrafficMeter,
        outcomes: OutcomeForm,
        on_reached: OnReached = lambda reached: None,
    ) -> None:
        self._on_reached = on_reached
        self.peer = peer
        self._outcomes = outcomes
        self._show = show
        self._meter = meter
        self._pending: dict[int, Reply] = {}
        self._returning: dict[int, Reply] = {}
        self._pieces = Pieces(half_of_memory())
        self._changing = threading.Lock()
        self.ending: Future[StratagemError] = Future()
        self.leaving: Future[None] = Future()
        self._loss: StratagemError | None = None
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._wire = wire
        self._responses = iter(wire)

    def open(self, seconds: float) -> pb.WorkerSessionOpened:
        """Wait for the answer to the handshake, and go on from there.

        Raises:
            UnavailableError: The worker cannot be reached, or is shutting down.
            UnimplementedError: What answers is no worker server.
            StratagemError: It refused the handshake.
        """
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._wire.cancel()

        patience = threading.Timer(seconds, give_up)
        patience.daemon = True
        patience.start()
        try:
            with translated(self.peer, "Work"):
                response = next(self._responses, pb.WorkResponse())
        except StratagemError as error:
            self.end(error)
            if late.is_set():
                raise self._unanswered(seconds) from error
            if isinstance(error, CancelledError):
                raise UnavailableError(f"{self.peer} is shutting down") from error
            if isinstance(error, UnimplementedError):
                raise self._no_worker() from error
            raise
        finally:
            patience.cancel()
        lease = response.opened.session.lease_seconds
        if not _SHORTEST_LEASE <= lease <= _LONGEST_LEASE:
            raise MalformedStreamError(
                f"{self.peer} gives a lease of {lease:g} s; stop it, and start `stratagem worker`"
            )
        self._take(response)
        self._start(self._read, "stratagem-work")
        self._start(self._watch, "stratagem-heartbeat", lease)
        return response.opened

    def _no_worker(self) -> StratagemError:
        return UnimplementedError(
            f"the cluster has {self.peer}, but what answers there is no worker server; "
            "correct the addresses of the worker job, or end the program that has the "
            "port"
        )

    def _unanswered(self, seconds: float) -> StratagemError:
        return UnavailableError(
            f"{self.peer} did not answer for {seconds:g} s. Check that the worker "
            "server runs and that its address is right"
        )

    def _start(self, target: Callable[..., None], name: str, *args: object) -> None:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    @property
    def going(self) -> bool:
        """Whether the session has not ended."""
        return self._loss is None

    def send(self, instructions: Instructions) -> None:
        """Send instructions, if the session has not ended; do not wait."""
        self._wire.send(instructions)

    def run(self, closure: int, instructions: Instructions, reply: Reply) -> None:
        """Send what runs a function."""
        self._ask(self._pending, closure, instructions, reply)

    def send_back(self, closure: int) -> Future[ClosureAnswer]:
        """Ask for a result that stays on the worker."""
        order = pb.Instruction(send_back=pb.SendBack(closure=closure))
        future: Future[ClosureAnswer] = Future()
        self._ask(self._returning, closure, [order], future)
        return future

    def _ask(
        self, waiting: dict[int, Reply], closure: int, instructions: Instructions, reply: Reply
    ) -> None:
        with self._changing:
            loss = self._loss
            if loss is None:
                waiting[closure] = reply
        if loss is None:
            self._wire.send(instructions)
        else:
            reply.set_exception(loss)

    def end(self, loss: StratagemError) -> None:
        """End the session; what is under way fails with an error. Again does nothing.

        The worker drops what waits, interrupts what runs, and releases all objects.
        """
        with self._changing:
            if self._loss is not None:
                return
            self._loss = loss
            pending = [*self._pending.values(), *self._returning.values()]
            self._pending.clear()
            self._returning.clear()
        self._ended.set()
        self._wire.cancel()
        for reply in pending:
            reply.set_exception(loss)
        self.ending.set_result(loss)

    # What comes back.

    def _read(self) -> None:
        loss, took_leave = "it ended the session", False
        try:
            with translated(self.peer, "Work"):
                for response in self._responses:
                    self._take(response)
        except StratagemError as error:
            loss = error.message
            # Only a worker that is there says of which task an error is.
            took_leave = isinstance(error, UnavailableError) and bool(error.task)
        except Exception:
            _LOG.exception("what %s sent cannot be read", self.peer)
            loss = "it sent what cannot be read"
        ending = lost(self.peer, loss)
        ending.took_leave = took_leave
        self.end(ending)

    def _take(self, response: pb.WorkResponse) -> None:
        self._heard = time.monotonic()
        self._meter.received(response.ByteSize())
        for event in response.events:
            kind = event.WhichOneof("kind")
            if kind == "piece":
                self._pieces.add(event.piece)
            elif kind == "started":
                self._begun(event.started.closure)
            elif kind == "finished":
                self._finish(event.finished)
            elif kind == "sent_back":
                self._receive(event.sent_back)
            elif kind == "leaving":
                self.leaving.set_result(None)
            elif kind == "output":
                self._show(stream_of(event.output), event.output.text)

    def _begun(self, closure: int) -> None:
        with self._changing:
            reply = self._pending.get(closure)
        if reply is not None:
            reply.set_running_or_notify_cancel()

    def _finish(self, finished: pb.Finished) -> None:
        payload = self._pieces.joined(finished.payload)
        failure = None
        if finished.HasField("failure"):
            failure = failure_of(finished.failure, self.peer, self._outcomes)
        if finished.reached:
            self._on_reached(finished.reached)
        with self._changing:
            reply = self._pending.pop(finished.closure, None)
        if reply is None:
            return
        if failure is not None:
            reply.set_exception(failure)
        else:
            reply.set_result(ClosureAnswer(payload, finished.staying_bytes))

    def _receive(self, sent_back: pb.SentBack) -> None:
        payload = self._pieces.joined(sent_back.payload)
        with self._changing:
            reply = self._returning.pop(sent_back.closure, None)
        if reply is not None:
            reply.set_result(ClosureAnswer(payload))

    # Whether there is somebody.

    def _watch(self, lease_seconds: float) -> None:
        while not self._ended.wait(lease_seconds / _BEATS):
            silence = time.monotonic() - self._heard
            if silence > lease_seconds:
                why = f"nothing was heard of it for {silence:.0f} s"
                self.end(lost(self.peer, why))
            self.send([pb.Instruction(beat=pb.Beat())])


def lost(peer: str, why: str) -> WorkerLostError:
    """Return the error of everything that was under way on a worker."""
    return WorkerLostError(
        f"{peer} was lost: {why}. It is not known how far it came with what it was running"
    )
