"""One session with one worker server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from queue import Empty, SimpleQueue

import grpc

from stratagem._servers.traffic import TrafficMeter
from stratagem._worker_servers.answer import Answer
from stratagem._worker_servers.closure_failure import failure_of
from stratagem._worker_servers.output import Show, stream_of
from stratagem_proto.errors import StratagemError, UnavailableError, WorkerLostError
from stratagem_proto.payloads import Pieces, batches
from stratagem_proto.status import translated
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.worker_pb2_grpc import WorkerServiceStub

_LOG = logging.getLogger("stratagem")

# A worker is asked for a sign of life, and looked at, this often within its lease.
_BEATS = 4

Instructions = Iterable[pb.Instruction]


class WorkStream:
    """A call of `Work`: instructions there, events back. Thread-safe.

    Args:
        channel: To the worker.
        peer: What errors call it.
        opening: The handshake.
        show: Shows what functions write.
        meter: Counts what passes.

    Attributes:
        ending: Why the session ended, once it has.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        peer: str,
        opening: pb.OpenWorkerSession,
        show: Show,
        meter: TrafficMeter,
    ) -> None:
        self.peer = peer
        self._show = show
        self._meter = meter
        self._outbox: SimpleQueue[Instructions | None] = SimpleQueue()
        self._pending: dict[int, Future[Answer]] = {}
        self._returning: dict[int, Future[Answer]] = {}
        self._pieces = Pieces()
        self._changing = threading.Lock()
        self.ending: Future[StratagemError] = Future()
        self._loss: StratagemError | None = None
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._call = WorkerServiceStub(channel).Work(
            self._requests(opening), wait_for_ready=True
        )

    def open(self, seconds: float) -> pb.WorkerSessionOpened:
        """Waits for the answer to the handshake, and goes on from there.

        Args:
            seconds: How long to wait at most.

        Raises:
            UnavailableError: The worker cannot be reached, or is shutting down.
            StratagemError: It refused the handshake.
        """
        patience = threading.Timer(seconds, self._call.cancel)
        patience.daemon = True
        patience.start()
        try:
            with translated(self.peer, "Work"):
                response = next(self._call, pb.WorkResponse())
        except StratagemError as error:
            raise self._unreached(error, seconds) from error
        finally:
            patience.cancel()
        self._take(response)
        self._start(self._read, "stratagem-work")
        self._start(
            self._watch, "stratagem-heartbeat", response.opened.session.lease_seconds
        )
        return response.opened

    def _unreached(self, error: StratagemError, seconds: float) -> StratagemError:
        self.end(error)
        if self._call.code() is not grpc.StatusCode.CANCELLED:
            return error
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
        """Sends instructions, if the session has not ended; does not wait."""
        self._outbox.put(instructions)

    def run(self, closure: int, instructions: Instructions) -> Future[Answer]:
        """Sends what runs a function; returns its result to come."""
        return self._ask(self._pending, closure, instructions)

    def send_back(self, closure: int) -> Future[Answer]:
        """Has a result sent that stays on the worker."""
        order = pb.Instruction(send_back=pb.SendBack(closure=closure))
        return self._ask(self._returning, closure, [order])

    def _ask(
        self,
        waiting: dict[int, Future[Answer]],
        closure: int,
        instructions: Instructions,
    ) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._changing:
            if self._loss is None:
                waiting[closure] = future
                self._outbox.put(instructions)
                return future
        future.set_exception(self._loss)
        return future

    def end(self, loss: StratagemError) -> None:
        """Ends the session; what is under way fails with an error. Again does nothing.

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
        self._outbox.put(None)
        self._call.cancel()
        for future in pending:
            future.set_exception(loss)
        self.ending.set_result(loss)

    # What goes there.

    def _requests(self, opening: pb.OpenWorkerSession) -> Iterator[pb.WorkRequest]:
        yield pb.WorkRequest(open=opening)
        while (waiting := self._taken()) is not None:
            for batch in batches(waiting):
                request = pb.WorkRequest(instructions=batch)
                self._meter.sent(request.ByteSize())
                yield request

    def _taken(self) -> Instructions | None:
        """All that is to be sent now, waiting for the first; None at the end."""
        waiting = [self._outbox.get()]
        with suppress(Empty):
            while waiting[-1] is not None:
                waiting.append(self._outbox.get_nowait())
        found = [instructions for instructions in waiting if instructions is not None]
        return chain.from_iterable(found) if None not in waiting else None

    # What comes back.

    def _read(self) -> None:
        loss = "it ended the session"
        try:
            with translated(self.peer, "Work"):
                for response in self._call:
                    self._take(response)
        except StratagemError as error:
            loss = error.message
        except Exception:
            _LOG.exception("what %s sent cannot be read", self.peer)
            loss = "it sent what cannot be read"
        self.end(lost(self.peer, loss))

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
            elif kind == "output":
                self._show(stream_of(event.output), event.output.text)

    def _begun(self, closure: int) -> None:
        with self._changing:
            future = self._pending.get(closure)
        if future is not None:
            future.set_running_or_notify_cancel()

    def _finish(self, finished: pb.Finished) -> None:
        payload = self._pieces.joined(finished.payload)
        with self._changing:
            future = self._pending.pop(finished.closure, None)
        if future is None:
            return
        if finished.HasField("failure"):
            future.set_exception(failure_of(finished.failure, self.peer))
        else:
            future.set_result(Answer(payload, finished.staying_bytes))

    def _receive(self, sent_back: pb.SentBack) -> None:
        payload = self._pieces.joined(sent_back.payload)
        with self._changing:
            future = self._returning.pop(sent_back.closure, None)
        if future is not None:
            future.set_result(Answer(payload))

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
        f"{peer} was lost: {why}. It is not known how far it came with what it was "
        "running"
    )
