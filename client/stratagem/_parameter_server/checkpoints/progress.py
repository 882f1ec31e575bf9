"""How far this worker is: in the steps that its program counts, and in what else it has registered.

Each request tells it, so that checkpoints have it as of their moment, and a process that is started
again learns how far the one before had come.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stratagem._checkpoints.series import (
    ENDED,
    STEPS,
    UNSHARED,
    Stateful,
    require_registrable,
    states_as_json,
)
from stratagem._cluster.tasks import Membership
from stratagem._core.protocols import LocalStepsTold
from stratagem._parameter_server.checkpoints.restoring import ask_all, half_restored
from stratagem._parameter_server.hosting.push import PullMode
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._ps_client.checkpoint_steps import ONLY_SHARES, ProgramStep
from stratagem._ps_client.requests.coordination import describe
from stratagem_proto.errors import (
    FailedPreconditionError,
)
from stratagem_proto.v1.checkpoint_pb2 import ListRestoredResponse, TaskPosition
from stratagem_proto.v1.session_pb2 import WorkerReport, WorkerState

_LOG = logging.getLogger("stratagem")

COUNTS_OR_COORDINATES = (
    "strategy.steps() counts what its program does itself, so that a step is applied once when the "
    "program is started again, but functions that a ClusterCoordinator has scheduled in it would "
    "run again; loop over a range(), and begin it with what strategy.restore() has as `extra`"
)


_OUTSIDE = (
    "{} steps outside of a loop over strategy.steps(), and the program has called resume(): once "
    "it is started again, nobody would know of this step, and it would be taken again. Loop over "
    "strategy.steps() wherever an optimizer steps"
)


class WorkerStates:
    """The states that this worker reports, after each of its steps and runs."""

    def __init__(self, membership: Membership, store: RemoteStore) -> None:
        self._membership = membership
        self._store = store
        self._registered: dict[str, Stateful] = {}
        self._deferred: dict[str, Any] = {}
        # Why nobody knows them, if this process has taken the place of one that counted no steps.
        self.lost = ""
        # Whether this worker has taken steps by itself that servers do not know of, and whether
        # they are being shared. Until then the states are those of the last share.
        self.unshared = self.is_sharing = False
        # As of the last two synchronous steps, or the last two runs.
        self._states: Sequence[WorkerState] = ()

    def register(self, name: str, stateful: Any) -> None:
        """Report the state of something from now on, in place of another.

        It goes on from what a checkpoint that was restored has by that name.

        Raises:
            InvalidTypeError: It has no state.
            InvalidArgumentError: JSON cannot express its state, or it is too large.
            FailedPreconditionError: This process goes on for another one, and nobody knows what the
                state was.
        """
        if self.lost:
            raise FailedPreconditionError(f"{name!r} cannot go on: {self.lost}")
        require_registrable(name, stateful)
        self._register(name, stateful)

    def _register(self, name: str, stateful: Stateful) -> None:
        if name in self._deferred:
            stateful.load_state_dict(self._deferred.pop(name))
        wanted = {**self._registered, name: stateful}
        self._report([*self._states[:-1], self._now(wanted)])
        self._registered = wanted

    def register_steps(self, counter: StepCounter) -> None:
        """Report how many steps the program has counted."""
        if self._registered.get(STEPS) is not counter:
            self._register(STEPS, counter)

    def restore(self, workers: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has; warn if it is of other workers."""
        states = workers.get("states", {})
        count = self._membership.num_training_tasks
        if states and workers["count"] != count:
            _LOG.warning(
                "the checkpoint has the states of %d workers, such as how far they had "
                "read their data, but there are %d now; what was registered stays "
                "where it is",
                workers["count"],
                count,
            )
            return
        self.load(states.get(self._membership.name, {}))

    def load(self, states: Mapping[str, Any]) -> None:
        """Go on from states by name; what is registered later does so, too."""
        self._deferred, self.unshared = dict(states), False
        for name in self._registered.keys() & self._deferred.keys():
            self._registered[name].load_state_dict(self._deferred.pop(name))
        if self._registered:
            self._report([self._now(self._registered)])

    @property
    def are_registered(self) -> bool:
        """Whether the program wants to keep anything besides the number of its steps."""
        return bool(self._registered.keys() - {STEPS})

    def ran(self) -> None:
        """Report the states after a step or a run, which is still a part of it."""
        if not self._registered or (self.unshared and not self.is_sharing):
            return
        now, before = self._now(self._registered), self._states
        is_same_step = bool(before) and before[-1].contributed == now.contributed
        # One of an earlier step is needed while that of the last is not complete.
        self._report([*(before[:-1] if is_same_step else before[-1:]), now])

    def at_beginning(self, counted: Mapping[str, int]) -> bytes:
        """Return a report as of the beginning of a counted step.

        Args:
            counted: By group: the last synchronous step that the counted steps before are a part
                of, where this process has not contributed to it.
        """
        state = self._now(self._registered)
        for group, step in counted.items():
            state.contributed[group] = max(state.contributed[group], step)
        return WorkerReport(states=[state]).SerializeToString()

    def begun(self) -> None:
        """Note that a counted step has begun, which may have no run and no optimizer's step.

        Whatever it changes first is then in checkpoints together with its number. Where steps are
        synchronous, a report has to wait until it is known to which of them it belongs.
        """
        if not self._store.step_tracker.is_synchronous():
            now = self._now(self._registered)
            self._states = [now]
            self._store.servers.steps.prepare(WorkerReport(states=[now]).SerializeToString())

    def _now(self, wanted: Mapping[str, Stateful]) -> WorkerState:
        states = {name: one.state_dict() for name, one in wanted.items()}
        content = states_as_json(states)
        contributed = self._store.step_tracker.contributed()
        return WorkerState(content=content, contributed=contributed)

    def _report(self, states: Sequence[WorkerState]) -> None:
        self._states = states
        # Without synchronous steps, the variables have all that is over.
        needed = states if states[-1].contributed else states[-1:]
        report = WorkerReport(states=needed)
        self._store.servers.steps.keep(report.SerializeToString())


class StepCounter(LocalStepsTold):
    """Counts the steps of a program, in all processes that run it one after the other.

    Servers know of each task which step it has begun last, and what of it they have applied. A
    process that takes the place of another one repeats that step: what was applied counts once, the
    rest is applied now.

    Attributes:
        position: How many steps this task has taken; during a step, that one included.
        is_known: Whether that is its place in the run: the program counts, or can go on with it.
        is_resumed: Whether the program has called `resume`, and so has to count all of its steps.
        ended: Whether the run is over.
        has_local: Whether the program takes local steps. Servers know those up to a share as one
            step, with the number of the first of them.
    """

    def __init__(self, membership: Membership, store: RemoteStore, states: WorkerStates) -> None:
        self._membership, self._store, self._states = membership, store, states
        self.position = 0
        self.is_known = self.is_resumed = self.ended = self.has_local = False
        # The local steps since the last share, or those before it until the next step begins; how
        # many steps were taken before them; whether one was taken in this step of the program; and
        # the number of the last of those that a former process may have shared.
        self._interval: ProgramStep | None = None
        self._before_interval = self._repeated = 0
        self._took_local = False
        # The steps of all loops before the present one, or the next one.
        self._base = 0
        self._is_inside = self._has_begun = False
        # By group: to how many synchronous steps the repeated step has contributed before, and the
        # last one that contains what this task has counted.
        self._contributed_before: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    # What checkpoints have of it.

    def state_dict(self) -> int:
        """Return the position; local steps count once they are shared."""
        is_open = self._states.unshared and not self._states.is_sharing
        return self._before_interval if is_open else self.position

    def load_state_dict(self, position: int) -> None:
        """Go on from the position of a checkpoint."""
        self.position, self.is_known = position, True
        self._interval, self._states.unshared, self._repeated = None, False, 0

    def require_positions(self, workers: Mapping[str, Any]) -> None:
        """Check that the program can go back to the positions of a checkpoint.

        Raises:
            FailedPreconditionError: It does not have them, or the present loop began later.
        """
        if not self.is_known:
            return
        count, states = self._membership.num_training_tasks, workers.get("states", {})
        known = {task: one[STEPS] for task, one in states.items() if STEPS in one}
        own = known.get(self._membership.name)
        if own is None or workers["count"] != count or len(known) < count:
            told = ", ".join(sorted(known)) or "nobody"
            raise FailedPreconditionError(
                f"the program counts its steps, and the checkpoint says of {told} how many they "
                f"had taken, but {count} workers would go back to it; go back to one that was "
                "saved by as many when all were in their loops over strategy.steps(), or start the "
                "program again"
            )
        if self._is_inside and own < self._base:
            raise FailedPreconditionError(
                f"the checkpoint has {own} steps of {self._membership.name}, and the loop "
                f"over strategy.steps() that runs now begins after {self._base}; start the program "
                "again to go back before it"
            )

    # Where a process goes on.

    def ask(self) -> list[ListRestoredResponse]:
        """Ask all servers how far this task is.

        Raises:
            FailedPreconditionError: Not all of them are in the same run.
        """
        answers = ask_all(self._store.servers)
        if half := half_restored(answers):
            raise FailedPreconditionError(
                f"{half}. Have the chief restore the checkpoint first, by strategy.restore() at "
                "the beginning of its program"
            )
        return list(answers.values())

    def resume(self, answers: Iterable[ListRestoredResponse]) -> bool:
        """Go on where this task was, as servers know it; return whether they know it."""
        known = {one.number: one for answer in answers for one in answer.positions}
        numbers = sorted(known)
        if not numbers:
            return False
        # The push of the step before may not have been sent when the last one began.
        behind = 2 if self._store.pull_mode is PullMode.IN_FLIGHT else 1
        latest = known[numbers[-behind:][0]]
        state = _last_state(latest)
        content = json.loads(state.content) if state.content else {}
        content.pop(STEPS, None)
        self._states.load(content)
        if not latest.number:
            return False  # it counted none when the checkpoint was saved
        self.position, self.is_known = latest.number - 1, True
        self._repeated = numbers[-1]
        self._counted = dict(state.contributed)
        self._contributed_before = {
            group: completed - self._counted.get(group, 0)
            for group, completed in self.completed().items()
            if completed > self._counted.get(group, 0)
        }
        return True

    def completed(self) -> dict[str, int]:
        """Return the last complete synchronous step of each group."""
        if not self._store.step_tracker.is_synchronous():
            return {}
        self._store.contributions.settle()
        before = self._store.step_tracker.committed_before
        groups = self._store.ask_first(describe())
        completed = {one.group: max(one.completed, before(one.group)) for one in groups}
        return {name: step for name, step in completed.items() if step}

    def restored(self) -> None:
        """Note that this process has begun a run, with what checkpoints say of its position."""
        self._contributed_before.clear()
        self._counted = self.completed()

    # The loop.

    def steps(self, stop: int, start: int | None) -> Iterator[int]:
        """Yield the numbers of the steps that are left; see `ParameterServerStrategy.steps`."""
        self._membership.require_trainer()
        if self._is_inside:
            raise FailedPreconditionError(
                "a loop over strategy.steps() is within another one, whose steps would be counted "
                "twice; count the inner steps alone, or take a range() for one of the loops"
            )
        self._find(start)
        base, self._is_inside = self._base, True
        try:
            while self.position < base + stop:
                if self.ended:
                    raise FailedPreconditionError(ENDED)
                number = max(self.position, base) + 1
                self._begin(number)
                yield number - base - 1
                self._end()
        except GeneratorExit:
            self._leave_step()
            raise
        finally:
            self._end()
            self._base, self._is_inside = base + stop, False

    def require_outside(self, what: str) -> None:
        """Raise FailedPreconditionError if a loop over `steps` runs, within which is no `what`."""
        if self._is_inside:
            raise FailedPreconditionError(
                f"{what} was called within a loop over strategy.steps(), whose step it would be a "
                "part of; call it behind the loop"
            )

    def _find(self, start: int | None) -> None:
        self._states.register_steps(self)
        if self.is_known:
            return
        answers = self.ask()
        if self.resume(answers):
            _LOG.warning(
                "%s goes on with step %d, which it had begun when its process ended: what servers "
                "have applied of it counts once",
                self._membership.name,
                self.position,
            )
            return
        if start is None and any(one.run.restoration for one in answers):
            raise FailedPreconditionError(
                f"the run began with a checkpoint that does not say how many steps "
                f"{self._membership.name} had taken: it was saved by a program that did not count "
                "them by strategy.steps(), or by another number of workers. Say where to begin: "
                "strategy.steps(stop, start=...)"
            )
        self.position, self.is_known = start or 0, True
        self._counted = self.completed()

    def _begin(self, number: int) -> None:
        steps = self._store.servers.steps
        self._took_local = False
        if self._interval is None or not self._states.unshared:
            report = self._states.at_beginning(self._counted)
            self._interval, self._before_interval = ProgramStep(number, report), number - 1
        self.position, self._has_begun = number, True
        steps.program_step = self._interval
        if not self.has_local:
            self._states.begun()

    def _end(self) -> None:
        self._store.servers.steps.program_step = None
        # A loop of which no steps are left ends without one, before the step that is repeated.
        has_begun, self._has_begun = self._has_begun, False
        if has_begun and not self._states.unshared:
            self._note_contributions()

    def _note_contributions(self) -> None:
        if self._before_interval + 1 < self._repeated:
            return  # what is left is of the step behind, which is repeated as well
        for group, contributions in self._contributed_before.items():
            self._counted[group] = self._counted.get(group, 0) + contributions
            self._store.step_tracker.go_on(group)
        self._contributed_before = {}

    def _leave_step(self) -> None:
        """Note that the loop was left in a step, which nobody has taken if it changed nothing."""
        step = self._store.servers.steps.program_step
        if step is not None and not step.has_trained and not self._took_local:
            self.position, self._has_begun = self.position - 1, False
            if not self.has_local:
                self._states.begun()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Let what follows belong to no counted step, unless it fails: then the step goes on."""
        steps = self._store.servers.steps
        present, steps.program_step = steps.program_step, None
        try:
            yield
        except BaseException:
            steps.program_step = present
            raise

    def has_contributed(self, optimizer: str) -> bool:
        """Return whether an optimizer's next step is complete already, and note that it is taken.

        A step that is repeated may have contributed to synchronous steps before, for which nobody
        waits any more.

        Raises:
            FailedPreconditionError: The program has resumed a run, and does not count this step.
        """
        step = self._store.servers.steps.program_step
        if self.is_resumed and step is None:
            raise FailedPreconditionError(_OUTSIDE.format(optimizer))
        left = self._contributed_before.get(optimizer, 0)
        if not left or step is None:
            return False
        step.has_trained = True
        self._contributed_before[optimizer] = left - 1
        if left == 1:
            self._store.step_tracker.go_on(optimizer)
        self._counted[optimizer] = self._counted.get(optimizer, 0) + 1
        return True

    # Local steps.

    def require_shared(self, what: str) -> None:
        """Raise FailedPreconditionError if `what` would leave local steps out."""
        if self._states.unshared:
            raise FailedPreconditionError(UNSHARED.format(what))

    def begin_local_step(self) -> None:
        """Note that this worker steps by itself."""
        step = self._store.servers.steps.program_step
        if self.is_resumed and step is None:
            raise FailedPreconditionError(_OUTSIDE.format("LocalSteps"))
        if step is not None:
            if step.has_trained and not self._states.unshared:
                raise FailedPreconditionError(
                    "LocalSteps steps in a step of strategy.steps() that has changed variables "
                    f"before: {ONLY_SHARES}"
                )
            step.is_local = True
        self._states.unshared = self._took_local = True

    @contextmanager
    def sharing(self) -> Iterator[bool]:
        """Let what follows be the share of the local steps until now, for checkpoints one step.

        Yields whether a former process may have shared them already, which then counts.
        """
        steps, states, step = self._store.servers.steps, self._states, self._interval
        present, states.is_sharing = steps.program_step, True
        steps.program_step = step
        if step is not None:
            step.is_local = False
        try:
            with steps.step_scope():
                yield step is not None and self._before_interval < self._repeated
                states.unshared = False
                self._note_contributions()
                states.ran()
        finally:
            steps.program_step, states.is_sharing = present, False
            if step is not None:
                step.is_local = states.unshared

    @property
    def has_nothing_to_share(self) -> bool:
        """Whether the program counts its steps, and has taken none since it was started."""
        return self.is_known and self._interval is None

    def drop_local_steps(self) -> None:
        """Note that what was stepped since the last share does not count."""
        self._states.unshared = False
        if self._interval is not None:
            self._interval.is_local = False


def _last_state(position: TaskPosition) -> WorkerState:
    states = WorkerReport.FromString(position.report).states
    return states[-1] if states else WorkerState()
