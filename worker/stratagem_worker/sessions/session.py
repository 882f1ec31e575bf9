"""What one client has done on this worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from stratagem._core.contexts import clear_remains, on_worker
from stratagem._ps_client.closure_identity import running
from stratagem._ps_client.write_behind import WritesBehind, writing_behind
from stratagem._shipping.loader import Loader
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.server_log import LOG
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_proto.wire.payloads import Pieces
from stratagem_worker.functions.capture import captured
from stratagem_worker.functions.closure import cancelled, run_closure
from stratagem_worker.functions.executor import Executor, Job
from stratagem_worker.functions.interruption import Interrupted, Interruptible
from stratagem_worker.results import Copies, StayingResults
from stratagem_worker.sessions.outbox import Outbox
from stratagem_worker.sessions.unreported_outcomes import FunctionOutcome, UnreportedOutcomes
from stratagem_worker.sessions.watch import Watch, WorkerWriteBatcher
from stratagem_worker.settings import WorkerSettings


class Running(NamedTuple):
    """What runs on the worker."""

    session: WorkSession
    closure: int


class WorkSession:
    """Takes the instructions of one client and sends it events; on the event loop.

    Attributes:
        role: What the client is to the cluster.
        task: The client's task.
        heard: When it was heard of last, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        executor: Executor,
        interruptible: Interruptible[Running],
        results: StayingResults,
        loader: Loader,
        client: OpenSessionRequest,
    ) -> None:
        """Begin the session of a client."""
        self.role, self.task = client.role, client.task
        self.heard = time.monotonic()
        watch = Watch()
        self.outbox = Outbox()
        self._unreported = UnreportedOutcomes(watch, self._report)
        self._batcher = WorkerWriteBatcher(watch, lambda: executor.has_more)
        self.results = results
        self._copies = Copies(results, settings)
        self._settings = settings
        self._executor = executor
        self._interruptible = interruptible
        self._loader = loader
        self._given_up: set[int] = set()
        # Of the functions whose outcomes have not been reported.
        self._writes: dict[int, WritesBehind] = {}
        # How far servers have come, by task index, as far as the client knows.
        self._told: dict[int, bytes] = {}
        self._accepting = True
        self._pieces = Pieces()
        self._orders: dict[str, Callable[[Any], None]] = {
            "piece": self._pieces.add,
            "define": self._obey_define,
            "run": self._obey_run,
            "cancel": self._obey_cancel,
            "release": self._obey_release,
            "take": self._obey_take,
            "send_back": self._obey_send_back,
            "beat": self._obey_beat,
        }

    def obey(self, instructions: Sequence[pb.Instruction]) -> None:
        """Carry out instructions; raise `InvalidArgumentError` if one is not known here."""
        self.heard = time.monotonic()
        for instruction in instructions:
            self._obey(instruction)

    def _obey(self, instruction: pb.Instruction) -> None:
        kind = instruction.WhichOneof("kind")
        if kind is None:
            raise InvalidArgumentError(
                f"{self._settings.label} was sent an instruction that it does not "
                "know; install the same release of stratagem on both"
            )
        self._orders[kind](getattr(instruction, kind))

    def _obey_define(self, order: pb.Define) -> None:
        payload = self._pieces.joined(order.payload)
        self._submit(partial(self._define, order.handle, payload))

    def _obey_run(self, order: pb.Run) -> None:
        payload = self._pieces.joined(order.payload)
        if not self._accepting:
            self.outbox.put_finished(cancelled(order.closure, self._settings.label))
            return
        self.outbox.expect()
        self._submit(partial(self._run, order, payload), order.closure)

    def _obey_cancel(self, order: pb.Cancel) -> None:
        def waits(job: Job) -> bool:
            return job.session is self and job.closure == order.closure

        for _ in self._executor.withdraw(waits):
            self.outbox.put_finished(cancelled(order.closure, self._settings.label))
        if order.interrupt:
            # If it is just about to begin, it finds this.
            self._given_up.add(order.closure)
            this = Running(self, order.closure)
            self._interruptible.interrupt(lambda running: running == this)
            if writes := self._writes.get(order.closure):
                writes.give_up_waiting()

    def _obey_release(self, order: pb.Release) -> None:
        self.results.release(order.results)
        self._submit(partial(self._loader.release, list(order.handles)))

    def _obey_take(self, order: pb.Take) -> None:
        copying = self._copies.begin(order.place)
        self._submit(partial(self._take, order.handle, copying))

    def _obey_send_back(self, order: pb.SendBack) -> None:
        payload = self.results.payload(order.closure)
        self.outbox.put_sent_back(order.closure, payload)

    def _obey_beat(self, beat: pb.Beat) -> None:
        self.outbox.put(pb.WorkEvent(beat=beat))

    def leave(self) -> None:
        """Let nothing begin any more, and give back what waits, so that others run it now."""
        self.outbox.put(pb.WorkEvent(leaving=pb.Leaving()))
        for job in self._withdrawn():
            if job.closure is not None:
                self.outbox.put_finished(cancelled(job.closure, self._settings.label))

    def _withdrawn(self) -> list[Job]:
        """Let nothing begin any more, and return what waited."""
        self._accepting = False
        return self._executor.withdraw(lambda job: job.session is self)

    def end(self) -> None:
        """Drop what waits, interrupt what runs, and release all objects."""
        self._withdrawn()
        self.outbox.close()
        self._copies.end()
        self.results.close()
        self._interruptible.interrupt(lambda running: running.session is self)
        for writes in [*self._writes.values()]:
            writes.give_up_waiting()
        self._submit(self._loader.close)

    def _submit(self, work: Callable[[], None], closure: int | None = None) -> None:
        self._executor.submit(Job(self, closure, work))

    # In the thread of the executor.

    def _define(self, handle: int, payload: bytes) -> None:
        try:
            self._loader.define(handle, payload)
        except Exception as error:
            # What needs it fails, and says so to the client.
            LOG.warning("object not loaded", handle=handle, why=repr(error))

    def _take(self, handle: int, copying: Future[bytes]) -> None:
        try:
            self._loader.take(handle, copying.result())
        except Exception as error:
            self._loader.lack(handle, error)

    def _run(self, order: pb.Run, payload: bytes) -> None:
        closure, worker = order.closure, self._settings.label
        writes = self._writes[closure] = WritesBehind(self._batcher)
        self.outbox.put_started(closure)
        began = time.monotonic()
        with (
            captured(partial(self._write, closure)),
            on_worker(self._settings.task),
            running(order.identity if order.HasField("identity") else None),
            writing_behind(writes),
        ):
            finished = self._interruptible.run(
                Running(self, closure),
                partial(self._finished, order, payload),
                partial(cancelled, closure, worker),
            )
        clear_remains()
        self._given_up.discard(closure)
        outcome = FunctionOutcome(finished, began, time.monotonic(), writes)
        self._unreported.add(outcome, self._executor.has_more)

    def _report(self, finished: pb.Finished, seconds: float, at_once: bool) -> None:
        self._writes.pop(finished.closure, None)
        for task, reached in self._loader.reached().items():
            if self._told.get(task) != reached:
                self._told[task] = finished.reached[task] = reached
        self.outbox.put_finished(finished, at_once)
        # Nobody waits for this.
        self._executor.figures.count(finished, seconds)

    def _finished(self, order: pb.Run, payload: bytes) -> pb.Finished:
        if order.closure in self._given_up or not self._accepting:
            raise Interrupted
        found = run_closure(order, payload, self._loader)
        stays = order.use == pb.RESULT_USE_LARGE_STAYS
        return self.results.left(found) if stays else found

    def _write(self, closure: int, output: pb.Output) -> None:
        output.closure = closure
        self.outbox.put_output(output)
