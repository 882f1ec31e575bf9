"""Saving and restoring what servers hold, and what each worker wants to be kept of it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from stratagem._checkpoints.files import written_elsewhere
from stratagem._checkpoints.restoring import CheckpointEntry, RestoreStatus, Resumption
from stratagem._checkpoints.series import STEPS, Contents, Series
from stratagem._cluster.tasks import Membership
from stratagem._core.names import UniqueNames
from stratagem._parameter_server.checkpoints.progress import (
    COUNTS_OR_COORDINATES,
    StepCounter,
    WorkerStates,
)
from stratagem._parameter_server.checkpoints.publishing import Publisher
from stratagem._parameter_server.checkpoints.restoring import (
    ClusterRestorer,
    ask_all,
    await_run,
    half_restored,
    known_run,
)
from stratagem._parameter_server.checkpoints.saving import ClusterSaver
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.requests.checkpoints import announce_restored
from stratagem_proto.errors import FailedPreconditionError, NotFoundError
from stratagem_proto.v1.checkpoint_pb2 import ListRestoredResponse, TaskPosition, TrainingRun
from stratagem_proto.v1.session_pb2 import WorkerReport, WorkerState
from stratagem_storage.checkpoint.folder import open_checkpoint, require_room
from stratagem_storage.checkpoint.policy import policy_of_environment
from stratagem_storage.stores.places import absolute_place, shared_place

_LOG = logging.getLogger("stratagem")

Buffers = Iterable[tuple[str, torch.Tensor]]


class ClusterCheckpoints:
    """The checkpoints of one strategy.

    `variables` are those of this program, as they are created; `buffers` are those of its modules,
    which are in this process.

    Where several tasks train, their *run* begins with a restoration, or with the first checkpoint
    that is saved, and servers know it from then on. A process that is started again joins it: it
    changes nothing, and learns how far its task is. A coordinator's program is alone, since its
    workers run its functions.

    Attributes:
        states: What this worker wants to be kept besides variables.
        counter: Counts the steps of the program.
        is_coordinated: Whether the program coordinates workers.
    """

    def __init__(
        self,
        membership: Membership,
        store: RemoteStore,
        variables: Sequence[RemoteVariable],
        buffers: Buffers,
        names: UniqueNames,
    ) -> None:
        self._names = names
        self._membership = membership
        self._store = store
        self._variables = variables
        self._buffers = buffers
        self._saver = ClusterSaver(store.servers, store.peer_seconds)
        self._publisher = Publisher(store, self._copied_buffers)
        self._restorer: ClusterRestorer | None = None
        self._is_in_run = False
        self._joined = self._has_told_who_saves = False
        # What is told of the run, once the program has resumed.
        self._told = TrainingRun()
        self.states = WorkerStates(membership, store)
        self.counter = StepCounter(membership, store, self.states)
        self.is_coordinated = False

    def save(
        self,
        root: str | os.PathLike[str],
        series: Series,
        extra: Mapping[str, Any],
        ended: bool = False,
    ) -> Future[None]:
        """Save what the servers hold, and this task's buffers, if it is the chief."""
        if not self._membership.is_chief:
            self._tell_who_saves(root)
            return written_elsewhere()
        self._store.servers.require_all_visible("a checkpoint")
        self._store.training.require_all("a checkpoint")
        tasks = self._membership.num_training_tasks
        contents = Contents(self._copied_buffers(), extra, tasks, ended)
        if not (self.is_coordinated or self._is_in_run):
            # Whoever is started again finds the checkpoint, and must not restore it.
            self._store.servers.on_all(lambda: announce_restored("", TrainingRun()))
            self._is_in_run = True
        return self._saver.save(root, contents, series)

    def _tell_who_saves(self, root: str | os.PathLike[str]) -> None:
        # All workers may call it in the same loop, and then nothing is wrong.
        if not self._has_told_who_saves:
            self._has_told_who_saves = True
            _LOG.warning(
                "%s called save(%r), and has written nothing: the chief alone saves, %s, once it "
                "calls save() itself; all other tasks may call it as well or leave it out",
                self._membership.name,
                str(root),
                self._membership.creator_place,
            )

    def _copied_buffers(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self._buffers}

    def publisher(self, method: str) -> Publisher:
        """Return what publishes versions; only the chief has it.

        Raises:
            FailedPreconditionError: This is another task, or device filters hide a server.
        """
        if not self._membership.is_chief:
            raise FailedPreconditionError(
                f"{self._membership.name} called {method}, and only the chief publishes versions; "
                "let other tasks leave that call out"
            )
        self._store.servers.require_all_visible("a version")
        self._store.training.require_all("a version")
        return self._publisher

    @property
    def _has_others(self) -> bool:
        return self._membership.num_training_tasks > 1 and not self.is_coordinated

    def require_no_run(self) -> None:
        """Check that the program may coordinate workers.

        Raises:
            FailedPreconditionError: It has joined a run, as a program whose workers are others, or
                counts its steps.
        """
        if self._joined:
            raise FailedPreconditionError(
                "restore() was called before there was a ClusterCoordinator, and has left the "
                "variables as they are, as for a worker that is started again; make the "
                "coordinator first"
            )
        if self.counter.is_known:
            raise FailedPreconditionError(COUNTS_OR_COORDINATES)

    def restore(self, path: str | os.PathLike[str], strict: bool) -> RestoreStatus:
        """Give variables, optimizers and buffers what they have in a checkpoint.

        Where a run of several tasks is under way, join it and leave the variables as they are.

        Raises:
            FailedPreconditionError: This process takes part in a run of several tasks already, or
                the run under way has nothing to do with the checkpoint.
        """
        try:
            restorer = ClusterRestorer(self._store, path, self._membership)
        except NotFoundError:
            # The first checkpoint of a run under way is not whole before its save has ended.
            if self._is_in_run or not known_run(self._store.servers).HasField("run"):
                raise
            return self._join(None, ())
        restorer.tell(self._told)
        missing = self._require_fit(restorer, strict)
        if not self._has_others:
            self.counter.require_positions(restorer.workers)
            return self._restored(restorer, missing)
        if self._is_in_run:
            raise FailedPreconditionError(
                f"{self._membership.name} takes part in a run already, and others train in it; to "
                f"go back to {str(path)!r}, have all of them call strategy.roll_back()"
            )
        if self._membership.creates:
            answers = ask_all(self._store.servers)
            half = half_restored(answers)
            if half:
                _LOG.warning("%s; all begin anew with %r", half, str(path))
            is_under_way = any(one.HasField("run") for one in answers.values())
            if half or not is_under_way or not self._store.training.is_whole:
                return self._restored(restorer, missing)
        restorer.await_chief(of_any=True)
        restorer.require_of_run()
        return self._join(restorer, missing)

    # Resuming.

    def resume(
        self,
        path: str | os.PathLike[str],
        begin: Callable[[], object],
        finish: Callable[[Mapping[str, Any], int], None],
    ) -> Resumption:
        """Begin a run, with the latest checkpoint if there is one, or join the one under way.

        Args:
            path: The folder of checkpoints.
            begin: Sets what there is at the beginning of all.
            finish: Ends the run.

        Raises:
            FailedPreconditionError: This process has changed variables before, others have trained
                without it, or the run or the checkpoint is of another program.
        """
        folder = str(absolute_place(shared_place(path)))
        told = TrainingRun(folder=folder, tasks=self._membership.num_training_tasks)
        self._told = told
        if not (self._membership.creates and self._begin_run(path, begin)):
            if not self._membership.creates:
                await_run(self._store, self._membership, folder)
            self._join_resumed(path)
        self.counter.is_resumed = True
        self.states.register_steps(self.counter)
        index = self._restorer.checkpoint.index if self._restorer is not None else None
        return Resumption(
            str(self._restorer.checkpoint.folder) if self._restorer is not None else "",
            dict(index.extra) if index is not None else {},
            self.counter.position,
            self.counter.ended,
            finish,
        )

    def require_first(self, has_written: bool) -> None:
        """Check that this process has done nothing yet that resuming would undo.

        Args:
            has_written: Whether the program has written to parameters, which was dropped.

        Raises:
            FailedPreconditionError: It has.
        """
        self._membership.require_trainer()
        has_trained = self._store.servers.steps.has_trained
        if has_written or has_trained or self._is_in_run or self.counter.is_known:
            raise FailedPreconditionError(
                f"{self._membership.name} has called restore(), save() or resume(), trained, or "
                "set values before resume(), and would lose them, or overwrite what others have "
                "trained; call resume() once, first after the model and its optimizers were made, "
                "and load other initial values in its `begin`"
            )

    def _begin_run(self, path: str | os.PathLike[str], begin: Callable[[], object]) -> bool:
        """Begin a run, unless one is under way; return whether it has begun."""
        answers = ask_all(self._store.servers)
        half, is_whole = half_restored(answers), self._store.training.is_whole
        is_under_way = any(one.HasField("run") for one in answers.values())
        if is_under_way and is_whole and not half:
            return False
        self._require_untrained(answers if not is_under_way else {})
        restorer = self._latest(path)
        if restorer is not None:
            self.counter.ended = restorer.checkpoint.index.ended
            self._restored(restorer, ())
            self.counter.load_state_dict(restorer.position_of_task())
            return True
        if half or not is_whole:
            raise FailedPreconditionError(
                f"{half or 'a server was started again without what it had'}, and there is no "
                f"checkpoint in {str(path)!r} to begin with; restart all servers to begin anew"
            )
        require_room(shared_place(path))
        begin()
        self._store.servers.on_all(lambda: announce_restored("", self._told))
        self._is_in_run = True
        self.counter.load_state_dict(0)
        return True

    def _require_untrained(self, answers: Mapping[int, ListRestoredResponse]) -> None:
        trained = sorted({task for one in answers.values() for task in one.trained})
        if trained:
            raise FailedPreconditionError(
                f"{', '.join(trained)} trained before {self._membership.name} called resume(), "
                "which would lose it: have all workers call it before anything else, and restart "
                "the servers to begin anew"
            )

    def _latest(self, path: str | os.PathLike[str]) -> ClusterRestorer | None:
        """Return the latest checkpoint of a folder, which fits; None if there is none."""
        try:
            restorer = ClusterRestorer(self._store, path, self._membership)
        except NotFoundError:
            return None
        restorer.tell(self._told)
        optimizers = self._store.step_tracker.optimizers
        restorer.require_all_taken(self._variables, self._entries(), optimizers)
        self._require_fit(restorer, strict=True)
        restorer.position_of_task()
        return restorer

    def _join_resumed(self, path: str | os.PathLike[str]) -> None:
        answers = self.counter.ask()
        run = next((one.run for one in answers if one.run.ended), answers[0].run)
        told, name = self._told, self._membership.name
        if run.folder and (run.folder, run.tasks) != (told.folder, told.tasks):
            raise FailedPreconditionError(
                f"{name} would join, with {told.tasks} workers and the folder {told.folder!r}, a "
                f"run of {run.tasks} workers that resumes from {run.folder!r}; give all of them "
                "the same folder, and start as many, or restart the servers to begin anew"
            )
        restorer = self._latest(path)
        if restorer is not None and not run.folder:
            restorer.require_of_run()
        trained = {task for one in answers for task in one.trained}
        has_counted = any(one.positions for one in answers)
        if name in trained and not has_counted:
            raise FailedPreconditionError(
                f"{name} was started again, and has trained in this run without counting its "
                "steps; loop over strategy.steps(), and restart the servers to begin anew"
            )
        self._join(restorer, (), counts=True)
        self.counter.ended = run.ended
        if restorer is not None and run.ended and restorer.checkpoint.index.ended:
            # The last step that was begun is over, too.
            self.counter.load_state_dict(restorer.position_of_task())
        elif not self.counter.is_known:
            self.counter.load_state_dict(0)

    def finish(self, path: str | os.PathLike[str], extra: Mapping[str, Any], keep: int) -> None:
        """Save the last checkpoint of a run, and have servers know that it is over."""
        if self._membership.is_chief:
            self.save(path, Series(keep, incremental=False), extra, ended=True).result()
            run = known_run(self._store.servers).run
            run.ended = True
            self._store.servers.on_all(lambda: announce_restored("", run))
        self.counter.ended = True

    def roll_back(
        self, path: str | os.PathLike[str], strict: bool, meet: Callable[[str], None]
    ) -> RestoreStatus:
        """Have the run begin anew with a checkpoint; `meet` waits for all tasks at a barrier.

        What the checkpoint does not allow is found before the first change, and each task goes back
        when all servers have.
        """
        self._saver.wait()
        self._ready_to_roll_back(path, strict)
        meet("stratagem/roll_back")
        restorer, missing = self._ready_to_roll_back(path, strict)
        return self._restored(restorer, missing, partial(meet, "stratagem/rolled_back"))

    def _ready_to_roll_back(
        self, path: str | os.PathLike[str], strict: bool
    ) -> tuple[ClusterRestorer, Sequence[str]]:
        restorer = ClusterRestorer(self._store, path, self._membership)
        restorer.tell(self._told)
        missing = self._require_fit(restorer, strict)
        self.counter.require_positions(restorer.workers)
        return restorer, missing

    def _require_fit(self, restorer: ClusterRestorer, strict: bool) -> Sequence[str]:
        missing = restorer.require_fit(self._variables, self._entries(), strict)
        restorer.require_told_apart(self._variables)
        self._names.warn_of(restorer.doubtful(self._variables))
        return missing

    def _restored(
        self,
        restorer: ClusterRestorer,
        missing: Sequence[str],
        meet: Callable[[], None] = lambda: None,
    ) -> RestoreStatus:
        workers = restorer.workers
        with self.counter.left():
            restorer.restore(self._variables, self._positions(workers))
        if self._membership.creates:
            restorer.announce()
        else:
            restorer.await_chief(of_any=False)
        meet()
        restorer.restore_buffers(self._entries())
        self._restorer, self._is_in_run, self._joined = restorer, True, False
        self.states.restore(workers)
        self.counter.restored()
        position = workers.get("states", {}).get(self._membership.name, {}).get(STEPS, 0)
        return RestoreStatus(restorer, missing, restorer.checkpoint.index.extra, position)

    def _positions(self, workers: Mapping[str, Any]) -> list[TaskPosition]:
        """Return how far tasks were in a checkpoint, if it was saved by as many."""
        if workers.get("count") != self._membership.num_training_tasks:
            return []
        # Servers number synchronous steps on.
        completed = self.counter.completed() if self._membership.creates else {}
        positions = []
        for task, states in workers["states"].items():
            number = states[STEPS] + 1 if STEPS in states else 0
            state = WorkerState(content=json.dumps(states), contributed=completed)
            report = WorkerReport(states=[state]).SerializeToString()
            positions.append(TaskPosition(task=task, number=number, report=report))
        return positions

    def _join(
        self, restorer: ClusterRestorer | None, missing: Sequence[str], counts: bool = False
    ) -> RestoreStatus:
        """Take part in a run under way, from where this task was.

        Args:
            restorer: The latest checkpoint; None if there is none yet.
            missing: What it lacks.
            counts: Whether it is known that this task has trained in counted steps alone.
        """
        answers = self.counter.ask()
        run = next(one.run for one in answers if one.HasField("run"))
        if self._membership.creates:
            # The one before may have ended when it had told some servers only.
            with self.counter.left():
                self._store.servers.on_all(lambda: announce_restored("", run))
        for variable in self._variables:
            variable.outdate()
        extra: Mapping[str, Any] = {}
        if restorer is not None:
            restorer.take(self._variables)
            restorer.restore_buffers(self._entries())
            extra = restorer.checkpoint.index.extra
        unused = restorer or _Nothing()
        self._restorer, self._is_in_run, self._joined = restorer, True, True
        if self.counter.resume(answers):
            return RestoreStatus(unused, missing, extra, self.counter.position)
        unknown = ""
        if not counts and any(one.uncounted for one in answers):
            unknown = (
                f"{self._membership.name} was started again, and its steps since the checkpoint "
                "are in the variables, but were not counted. Loop over strategy.steps(), which "
                "goes on where it was"
            )
            self.states.lost = unknown
            if self.states.are_registered:
                raise FailedPreconditionError(f"what was registered cannot go on: {unknown}")
        elif not run.restoration:
            unknown = (
                "this run began with no checkpoint, and this process has done nothing in it. Loop "
                "over strategy.steps(), which begins where its task is"
            )
        return RestoreStatus(unused, missing, _extra_of(run), unknown=unknown)

    def created(self, variables: Sequence[RemoteVariable], kept: Iterable[RemoteVariable]) -> None:
        """Restore variables that were made after a checkpoint was restored.

        Where this process has joined a run, those that were `kept` have the run's values.
        """
        if self._restorer is None or not variables:
            return
        self._restorer.require_told_apart_later(variables, self._variables)
        self._names.warn_of(self._restorer.doubtful(variables))
        names = {one.name for one in kept} if self._joined else frozenset[str]()
        self._restorer.take([one for one in variables if one.name in names])
        self._restorer.restore([one for one in variables if one.name not in names])
        self._store.refresh(variables)

    def forget(self, names: Collection[str]) -> None:
        """Have what is made later under these names start with values of its own."""
        if self._restorer is not None:
            self._restorer.forget(names)

    def before_use(self) -> None:
        """Check that what was made since a checkpoint was restored are all of their names."""
        if self._restorer is not None:
            self._restorer.require_told_apart(self._variables)

    def buffers_hosted(self) -> None:
        """Restore buffers that were made after a checkpoint was restored."""
        if self._restorer is not None:
            self._restorer.restore_buffers(self._entries())

    def close(self) -> None:
        """Publish nothing more, and wait for what is being written."""
        self._publisher.close()
        self._saver.wait()

    def _entries(self) -> list[CheckpointEntry]:
        return [CheckpointEntry.of_tensor(*named) for named in self._buffers]


class _Nothing:
    """A checkpoint that is not there yet."""

    def names(self) -> list[str]:
        """Nothing waits for variables."""
        return []


def _extra_of(run: TrainingRun) -> Mapping[str, Any]:
    """Return what was saved with the checkpoint that a run began with."""
    if not run.restoration:
        return {}
    if run.extra:
        extra: Mapping[str, Any] = json.loads(run.extra)
        return extra
    return open_checkpoint(shared_place(run.path), policy_of_environment()).index.extra
