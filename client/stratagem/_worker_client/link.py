"""One worker server: a connection over which it runs functions."""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import cloudpickle
import torch

from stratagem._ps_client.session import Identity, check_answering, handshake
from stratagem._ps_client.transport import TrafficMeter
from stratagem._shipping.outcome_forms import PLAIN, OutcomeForm
from stratagem._version import __version__
from stratagem._worker_client.wire import (
    Batchers,
    ClosureAnswer,
    GrpcWire,
    Instructions,
    MakeWire,
    Reply,
    SocketWire,
    Wire,
    failure_of,
)
from stratagem_proto.errors import (
    CancelledError,
    MalformedStreamError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
    WorkerLostError,
)
from stratagem_proto.memory import half_of_memory
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import ClosureIdentity, FrameSockets, Task
from stratagem_proto.v1.worker_pb2 import Runtime
from stratagem_proto.wire.payloads import Pieces, split
from stratagem_proto.wire.status import translated
from stratagem_rpc.channel import (
    GRPC,
    PATIENT_SECONDS,
    Deadlines,
    Expected,
    transport_from_environment,
)
from stratagem_rpc.sockets.client import endpoints

Show = Callable[[str, str], None]
"""Takes "stdout", "stderr" or the name of a level of the log, and a text."""

_OUTPUT_LOG = logging.getLogger("stratagem.worker")

_STREAMS = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}


def stream_of(output: pb.Output) -> str:
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
                raise self._unanswered(seconds) from None
            if isinstance(error, CancelledError):
                raise UnavailableError(f"{self.peer} is shutting down") from None
            if isinstance(error, UnimplementedError):
                raise self._no_worker() from None
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
        return self._loss is None

    def send(self, instructions: Instructions) -> None:
        """Send instructions, if the session has not ended; do not wait."""
        self._wire.send(instructions)

    def run(self, closure: int, instructions: Instructions, reply: Reply) -> None:
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


def this_runtime() -> Runtime:
    return Runtime(
        python="{}.{}".format(*sys.version_info),
        torch=torch.__version__.partition("+")[0],
        cloudpickle=cloudpickle.__version__,
        stratagem=__version__,
    )


class WorkerLink:
    """All dealings of this process with one worker server. Thread-safe.

    What it sends, the worker carries out in order, one function at a time. It can be connected
    again after the worker was lost.

    Attributes:
        task: The worker, for instance "/job:worker/task:1".
        incarnation: Names what the worker has of this link; another value after `connect` means
            that everything is gone that was defined or kept.
        meter: Counts what passes; another one may take its place before `connect`.
        batchers: Tell what waits to be sent with what follows; so may these.
        outcomes: How outcomes travel; another form may take its place, too.
        on_reached: Told what the worker knows of parameter servers; so may this.
        gpus: How many GPUs the worker has.
    """

    def __init__(
        self,
        address: str,
        task: Task,
        identity: Identity,
        deadlines: Deadlines | None = None,
        on_output: Show | None = None,
    ) -> None:
        """Describe the worker; do not connect.

        `on_output` is called with what its functions write, in another thread; without it, that is
        shown behind the worker's name.
        """
        self.task = f"/job:{task.job}/task:{task.index}"
        self.incarnation = b""
        self.meter = TrafficMeter()
        self.batchers = Batchers()
        self.outcomes: OutcomeForm = PLAIN
        self.on_reached: OnReached = lambda reached: None
        self.gpus = 0
        self._address, self._expected = address, Expected(task.job, task.index)
        self._identity = identity
        self._deadlines = deadlines or Deadlines()
        self._show = on_output or labelled(self.task)
        self._wire: Wire | None = None
        self._told = FrameSockets()
        self._stream: WorkStream | None = None

    @property
    def peer(self) -> str:
        """What errors call the worker."""
        return f"{self.task} at {self._address}"

    @property
    def connect_seconds(self) -> float:
        """How long the worker may take to answer at first."""
        return self._deadlines.connect

    @property
    def connected(self) -> bool:
        return self._stream is not None and self._stream.going

    @property
    def way(self) -> str:
        """How the session goes: "unix", "tcp" or "grpc"."""
        return self._wire.way if isinstance(self._wire, SocketWire) else GRPC

    def connect(self) -> None:
        """Open a session; one that this link has already is ended.

        Raises:
            UnavailableError: The worker cannot be reached, or is shutting down.
            UnauthenticatedError: It has another cluster token.
            FailedPreconditionError: It runs other versions of Python, PyTorch, cloudpickle or
                Stratagem, or is another task.
            UnimplementedError: What answers is no worker server.
        """
        self.close()
        setting, session = transport_from_environment(), secrets.token_bytes(SESSION_ID_BYTES)
        token = self._identity.token
        wire = partial(GrpcWire, self._address, token, expected=self._expected)
        self._begin(session, wire)
        told, expected = self._told, self._expected
        for endpoint in endpoints(told, self._address, setting, PATIENT_SECONDS, expected):
            # Where that fails, gRPC does.
            with suppress(OSError, StratagemError):
                return self._begin(session, partial(SocketWire, endpoint, self.batchers, token))

    def _begin(self, session: bytes, make: MakeWire) -> None:
        """Open a session, in place of the one there is, which may be the same by another way."""
        opening = _opening(self._identity, session, self._address)
        opening.trusts_worker = self.outcomes.trusts_worker
        wire = make(opening, self.meter)
        stream = WorkStream(wire, self.peer, self._show, self.meter, self.outcomes, self.on_reached)
        try:
            opened = stream.open(self._deadlines.connect)
            check_answering(opened.session.task, self.peer)
        except BaseException:
            stream.end(lost(self.peer, "it cannot be used"))
            wire.close()
            raise
        self.close()
        self._wire, self._stream, self.incarnation = wire, stream, session
        self._told, self.gpus = opened.session.frame_sockets, opened.gpus

    def when_ended(self, tell: Callable[[StratagemError], None]) -> None:
        """Tell a function why the session ends, once, in any thread; at once if it has ended."""
        assert self._stream is not None, "the link is not connected"
        self._stream.ending.add_done_callback(lambda ending: tell(ending.result()))

    def when_leaving(self, tell: Callable[[], None]) -> None:
        """Call a function once, in any thread, when the worker says that it is about to stop."""
        assert self._stream is not None, "the link is not connected"
        self._stream.leaving.add_done_callback(lambda _: tell())

    def define(self, handle: int, payload: bytes) -> None:
        """Give the worker an object to which later payloads refer, or change one."""
        self._send(_define(handle, payload))

    def run(
        self,
        closure: int,
        payload: bytes,
        keep_as: int = 0,
        identity: ClosureIdentity | None = None,
        use: pb.ResultUse = pb.RESULT_USE_UNSPECIFIED,
    ) -> Future[ClosureAnswer]:
        """Let the worker call what a payload loads to, without arguments.

        Args:
            closure: A number of this link's own.
            payload: The pickled function.
            keep_as: Handle under which the worker keeps the result; 0 to get it.
            identity: By which servers know what the function asks them again; None for what may be
                done as often as it runs.
            use: What becomes of the result, if it is not kept.

        Returns:
            The result to come, running once the function has begun. It fails with `ClosureFailure`,
            or with `WorkerLostError` if the worker is lost before.
        """
        future: Future[ClosureAnswer] = Future()
        order = pb.Run(closure=closure, keep_as=keep_as, identity=identity, use=use)
        self.begin(order, payload, future)
        return future

    def begin(self, order: pb.Run, payload: bytes, reply: Reply) -> None:
        """As `run`, of an order without its payload; `reply` is told what a future would be."""
        if self._stream is None:
            reply.set_exception(self._unconnected())
        else:
            self._stream.run(order.closure, _run(order, payload), reply)

    def send_back(self, closure: int) -> Future[ClosureAnswer]:
        """Ask for the result of a function that stays on the worker.

        The future fails with `WorkerLostError` if the worker is lost before.
        """
        if self._stream is not None:
            return self._stream.send_back(closure)
        future: Future[ClosureAnswer] = Future()
        future.set_exception(self._unconnected())
        return future

    def place(self, closure: int) -> pb.ResultPlace:
        """Return where other workers find a result that stays on this worker."""
        return pb.ResultPlace(address=self._address, session_id=self.incarnation, closure=closure)

    def take(self, handle: int, place: pb.ResultPlace) -> None:
        """Give the worker an object that is a result on this worker or another."""
        take = pb.Take(handle=handle, place=place)
        self._send([pb.Instruction(take=take)])

    def cancel(self, closure: int, interrupt: bool = True) -> None:
        """Give a function up, also if it has begun where `interrupt` is true.

        Its future then fails, unless it has ended before.
        """
        cancel = pb.Cancel(closure=closure, interrupt=interrupt)
        self._send([pb.Instruction(cancel=cancel)])

    def release(self, handles: Sequence[int], results: Sequence[int] = ()) -> None:
        """Let the worker forget objects by their handles, and results by their functions."""
        release = pb.Release(handles=handles, results=results)
        self._send([pb.Instruction(release=release)])

    def close(self) -> None:
        """End the session; what is under way fails. May be called again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(_closed(self.peer))
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _unconnected(self) -> StratagemError:
        return lost(self.peer, "it is not connected")

    def _send(self, instructions: Instructions) -> None:
        if self._stream is not None:
            self._stream.send(instructions)


def task_at(address: str, identity: Identity, deadlines: Deadlines) -> Task:
    """Return the task of the worker server at an address; raise as `WorkerLink.connect`."""
    peer = f"the worker at {address}"
    session = secrets.token_bytes(SESSION_ID_BYTES)
    opening = _opening(identity, session, address)
    wire = GrpcWire(address, identity.token, opening, TrafficMeter())
    stream = WorkStream(wire, peer, labelled(peer), TrafficMeter(), PLAIN)
    try:
        return stream.open(deadlines.connect).session.task
    finally:
        stream.end(_closed(peer))
        wire.close()


def _opening(identity: Identity, session: bytes, address: str) -> pb.OpenWorkerSession:
    return pb.OpenWorkerSession(
        session=handshake(identity, session), runtime=this_runtime(), address=address
    )


def _closed(peer: str) -> StratagemError:
    return CancelledError(f"the connection to {peer} was closed before the answer came")


def _define(handle: int, payload: bytes) -> Iterator[pb.Instruction]:
    pieces, last = split(payload)
    yield from (pb.Instruction(piece=piece) for piece in pieces)
    yield pb.Instruction(define=pb.Define(handle=handle, payload=last))


def _run(order: pb.Run, payload: bytes) -> Iterator[pb.Instruction]:
    pieces, order.payload = split(payload)
    yield from (pb.Instruction(piece=piece) for piece in pieces)
    yield pb.Instruction(run=order)
