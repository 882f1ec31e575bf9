"""What one client has done on this worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stratagem._coordinator.worker_index import on_worker
from stratagem._servers.closure_identity import running
from stratagem._shipping.loader import Loader
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.payloads import Pieces
from stratagem_proto.serving.log import LOG
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.capture import captured
from stratagem_worker.closure import cancelled, finished
from stratagem_worker.executor import Executor, Job
from stratagem_worker.interruption import Interrupted, Interruptible
from stratagem_worker.outbox import Outbox
from stratagem_worker.settings import WorkerSettings


class Running(NamedTuple):
    """What runs on the worker."""

    session: WorkSession
    closure: int


class WorkSession:
    """Takes the instructions of one client and sends it events; on the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        executor: Executor,
        interruptible: Interruptible[Running],
        loader: Loader,
    ) -> None:
        """Begins it.

        Args:
            settings: Of the worker.
            executor: Carries out what takes time.
            interruptible: What that thread runs.
            loader: Makes objects of the client's payloads.
        """
        self.outbox = Outbox()
        self._settings = settings
        self._executor = executor
        self._interruptible = interruptible
        self._loader = loader
        self._given_up: set[int] = set()
        self._accepting = True
        self._pieces = Pieces()

    def obey(self, instructions: Sequence[pb.Instruction]) -> None:
        """Takes instructions in.

        Raises:
            InvalidArgumentError: One of them is not known here.
        """
        for instruction in instructions:
            self._obey(instruction)

    def _obey(self, instruction: pb.Instruction) -> None:
        kind = instruction.WhichOneof("kind")
        if kind == "piece":
            self._pieces.add(instruction.piece)
        elif kind == "define":
            payload = self._pieces.joined(instruction.define.payload)
            self._submit(partial(self._define, instruction.define.handle, payload))
        elif kind == "run":
            payload = self._pieces.joined(instruction.run.payload)
            if self._accepting:
                work = partial(self._run, instruction.run, payload)
                self._submit(work, instruction.run.closure)
        elif kind == "cancel":
            self._cancel(instruction.cancel)
        elif kind == "release":
            handles = list(instruction.release.handles)
            self._submit(partial(self._loader.release, handles))
        elif kind == "beat":
            self.outbox.put(pb.WorkEvent(beat=pb.Beat()))
        else:
            raise InvalidArgumentError(
                f"{self._settings.label} was sent an instruction that it does not "
                "know; install the same release of stratagem on both"
            )

    def drain(self) -> None:
        """Lets nothing begin any more; the client is told when its call ends."""
        self._accepting = False
        self._executor.withdraw(lambda job: job.session is self)

    def end(self) -> None:
        """Drops what waits, interrupts what runs, and releases all objects."""
        self.drain()
        self.outbox.close()
        self._interruptible.interrupt(lambda running: running.session is self)
        self._submit(self._loader.close)

    def _submit(self, work: Callable[[], None], closure: int | None = None) -> None:
        self._executor.submit(Job(self, closure, work))

    def _cancel(self, order: pb.Cancel) -> None:
        def waits(job: Job) -> bool:
            return job.session is self and job.closure == order.closure

        for _ in self._executor.withdraw(waits):
            self.outbox.put_finished(cancelled(order.closure, self._settings.label))
        if order.interrupt:
            # If it is just about to begin, it finds this.
            self._given_up.add(order.closure)
            this = Running(self, order.closure)
            self._interruptible.interrupt(lambda running: running == this)

    # In the thread of the executor.

    def _define(self, handle: int, payload: bytes) -> None:
        try:
            self._loader.define(handle, payload)
        except Exception as error:
            # What needs it fails, and says so to the client.
            LOG.warning("object not loaded", handle=handle, why=repr(error))

    def _run(self, order: pb.Run, payload: bytes) -> None:
        closure, worker = order.closure, self._settings.label
        self.outbox.put(pb.WorkEvent(started=pb.Started(closure=closure)))
        with (
            captured(partial(self._write, closure)),
            on_worker(self._settings.task),
            running(order.identity if order.HasField("identity") else None),
        ):
            end = self._interruptible.run(
                Running(self, closure),
                partial(self._finished, order, payload),
                partial(cancelled, closure, worker),
            )
        self._given_up.discard(closure)
        self.outbox.put_finished(end)

    def _finished(self, order: pb.Run, payload: bytes) -> pb.Finished:
        if order.closure in self._given_up or not self._accepting:
            raise Interrupted
        return finished(order, payload, self._loader)

    def _write(self, closure: int, output: pb.Output) -> None:
        output.closure = closure
        self.outbox.put_output(output)
