"""How far this worker is in its steps, and how its part of a synchronous one comes to count."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.optim import Optimizer

from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.coordination import describe, list_committed
from stratagem._ps_client.requests.updates import closed_steps, finish_step
from stratagem.consistency import KINDS, Async, Consistency, ConsistencyReport, WorkerReport
from stratagem_proto.consistency import message_named, name_of
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    StratagemError,
    UnavailableError,
    UnstagedContributionError,
)
from stratagem_proto.input_order import BatchRead
from stratagem_proto.v1 import consistency_pb2 as pb
from stratagem_proto.v1.closed_step_pb2 import ClosedStep, GlobalNorm
from stratagem_proto.v1.consistency_pb2 import InputDigest, StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import (
    CommitContributionResponse,
    Contribution,
    StepMark,
)

if TYPE_CHECKING:
    from stratagem._parameter_server.hosting.gradients import ServerBatch


def encoded_consistency(consistency: Consistency) -> pb.Consistency:
    """Return a consistency for servers."""
    return message_named(consistency._name, **consistency._fields())


def decoded_consistency(message: pb.Consistency) -> Consistency:
    """Return a consistency that came from a server."""
    return KINDS[name_of(message)]._of(message)


def report_of(group: pb.GroupConsistency, committed: int) -> ConsistencyReport:
    """Return what a server reports of a group, for users.

    `committed` is the last step to which the process that was this task before has committed.
    """
    consistency = decoded_consistency(group.consistency)
    workers = {worker.task: _worker_report_of(worker) for worker in group.workers}
    return ConsistencyReport(consistency, group.since, workers, max(group.completed, committed))


def _worker_report_of(worker: pb.WorkerClock) -> WorkerReport:
    staleness = {
        # Bucket i begins at 2^(i-1), the first one at 0.
        1 << bucket >> 1: count
        for bucket, count in enumerate(worker.staleness)
        if count
    }
    return WorkerReport(worker.finished, worker.dropped, staleness, worker.gone)


# Rates may come from how far a program is, and the others say how torch is to compute.
_OWN_SETTINGS = {"lr", "foreach", "fused", "capturable", "differentiable"}


def _shown(value: object) -> str:
    """Return a hyperparameter as text, "" of what has none that is the same in all processes."""
    if isinstance(value, torch.Tensor):
        return _shown(value.tolist()) if value.numel() == 1 else ""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_shown, value))})"
    return repr(value) if value is None or isinstance(value, bool | int | float | str) else ""


class StepPermit(NamedTuple):
    """What a worker needs to take a step.

    Attributes:
        step: Number of the step.
        consistency: How it is taken.
        closed: The last synchronous step that reads have to come after.
    """

    step: int
    consistency: Consistency
    closed: int = 0


@dataclass
class _Steps:
    """The steps of one optimizer.

    Attributes:
        declared: The consistency that it begins with, for servers.
        granted: What the last grant said.
        present: The consistency of that, or else the declared one.
        finished: The last step.
        counted: The last synchronous one that contains a contribution of this worker.
        permit: The latest one: for the next step, or for one that is finished.
        optimizer: What it was made with, as servers are told before the first grant.
    """

    declared: pb.Consistency
    present: Consistency
    granted: pb.Consistency | None = None
    finished: int = 0
    counted: int = 0
    permit: StepPermit | None = None
    optimizer: pb.DeclaredOptimizer | None = None


class StepTracker:
    """What this worker tells and hears of its steps.

    Args:
        declared: The consistency of optimizers that have none of their own.
        worker: Its place among those that train, which is also the order of addition; None for a
            task that trains nothing.
        num_workers: How many there are.
    """

    def __init__(self, declared: Consistency, worker: int | None, num_workers: int) -> None:
        self.declared = declared
        self.worker = worker
        self.num_workers = num_workers
        self._steps: dict[str, _Steps] = {}
        self._committed_before: Mapping[str, int] = {}
        self._inputs: list[InputDigest] = []
        self._has_reported = False

    def add(self, optimizer: str, declared: Consistency | None = None) -> None:
        """Take in an optimizer."""
        consistency = declared or self.declared
        self._steps[optimizer] = _Steps(encoded_consistency(consistency), consistency)

    def describe(self, name: str, optimizer: Optimizer, trained: Iterable[str]) -> None:
        """Take note of what an optimizer was made with, and of the variables that it steps."""
        digest = blake2b("\n".join(trained).encode(), digest_size=8).digest()
        self._steps[name].optimizer = pb.DeclaredOptimizer(
            class_name=type(optimizer).__name__,
            trained=int.from_bytes(digest, "little"),
            settings={
                key: text
                for key, value in optimizer.defaults.items()
                if key not in _OWN_SETTINGS and (text := _shown(value))
            },
        )

    def note_committed(self, committed: Mapping[str, int]) -> None:
        """Note the steps to which the process before has committed, by optimizer."""
        self._committed_before = committed

    def committed_before(self, optimizer: str) -> int:
        """Return the last synchronous step to which the process before has committed, or 0.

        It may not be closed yet. Once it is, nobody could tell that a step that repeats it is not
        the next one, so it is not to be contributed to again: see `go_on`.
        """
        return self._committed_before.get(optimizer, 0)

    def go_on(self, optimizer: str) -> None:
        """Go on behind what the process before has committed, as if it was done by this one.

        What is read from now on comes after it, so the program has to be that far: others may need
        this worker before they complete the step.
        """
        if steps := self._steps.get(optimizer):
            before = self.committed_before(optimizer)
            steps.finished, steps.counted = max(steps.finished, before), max(steps.counted, before)

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget all optimizers but these, once what is read comes after all of their steps."""
        self._steps = {name: one for name, one in self._steps.items() if name in optimizers}

    @property
    def optimizers(self) -> list[str]:
        """Their names, in the order in which they were made."""
        return list(self._steps)

    def require(self, optimizer: str) -> None:
        """Check that there is an optimizer of that name."""
        if optimizer not in self._steps:
            raise InvalidArgumentError(
                f"there is no optimizer {optimizer!r}; this strategy has "
                f"{', '.join(self._steps) or 'none'}"
            )

    def begins(self, optimizers: Sequence[str] | None = None) -> list[StepBegin]:
        """Return what to ask permits for: all optimizers, unless some are named."""
        if self.worker is None:
            return []
        return [
            StepBegin(
                group=name,
                worker=self.worker,
                num_workers=self.num_workers,
                finished=self._steps[name].finished,
                declared=self._steps[name].declared,
                optimizer=None if self._steps[name].permit else self._steps[name].optimizer,
            )
            for name in (self._steps if optimizers is None else optimizers)
        ]

    def note_input(self, read: BatchRead) -> int:
        """Note what was read of a dataset; return how much is to be reported."""
        names = {"pass": read.pass_number}
        self._inputs.append(
            InputDigest(
                dataset=read.dataset,
                batch=read.batch,
                digest=read.digest,
                first=not self._has_reported,
                **names,  # a keyword of Python
            )
        )
        self._has_reported = True
        return len(self._inputs)

    def take_inputs(self) -> list[InputDigest]:
        """Return what was read since the last report."""
        inputs, self._inputs = self._inputs, []
        return inputs

    def granted(self, begins: Sequence[StepBegin], grants: Sequence[StepGrant]) -> list[StepPermit]:
        """Note and return the permits that have come."""
        permits = []
        for begin, grant in zip(begins, grants, strict=True):
            steps = self._steps[begin.group]
            # The same in almost all steps.
            if grant.consistency != steps.granted:
                steps.granted = grant.consistency
                steps.present = decoded_consistency(grant.consistency)
            steps.permit = StepPermit(grant.step, steps.present, grant.closed)
            permits.append(steps.permit)
        return permits

    @property
    def is_alone(self) -> bool:
        """Whether there is no other worker."""
        return self.worker is not None and self.num_workers == 1

    def has_permits(self) -> bool:
        """Return whether all optimizers have permits for their next steps."""
        return all([self.permit(name) is not None for name in self._steps])

    def is_free(self) -> bool:
        """Return whether no optimizer's steps wait for other workers, or have ever."""
        return not self.is_synchronous() and all(
            [steps.present._is_free for steps in self._steps.values()]
        )

    def is_synchronous(self) -> bool:
        """Return whether an optimizer takes synchronous steps, or has taken any."""
        # What is read comes after all synchronous steps, however long ago they were.
        return any(
            [
                steps.present._closes_steps
                or bool(steps.counted)
                or (steps.permit is not None and bool(steps.permit.closed))
                for steps in self._steps.values()
            ]
        )

    def permit(self, optimizer: str) -> StepPermit | None:
        """Return the permit for the next step, None if it is yet to be asked for."""
        steps = self._steps[optimizer]
        if self.worker is None:
            return StepPermit(steps.finished + 1, Async())
        permit = steps.permit
        return permit if permit is not None and permit.step > steps.finished else None

    def leads(self) -> bool:
        """Return whether values may be read only once the permits are there.

        So it is where the fast wait for the slow, where a step may be over without this worker, and
        where nothing is known yet.
        """
        return self.worker is not None and any(
            [
                steps.permit is None or steps.present._permits_first(self.num_workers)
                for steps in self._steps.values()
            ]
        )

    def finish(self, optimizer: str, step: int) -> None:
        """Note that a step is finished."""
        self._steps[optimizer].finished = step

    def count(self, mark: StepMark) -> None:
        """Note that this worker's contribution to a synchronous step counts."""
        self._steps[mark.group].counted = mark.step

    def contributed(self) -> dict[str, int]:
        """Return the last synchronous step of each optimizer that it is a part of."""
        return {name: one.counted for name, one in self._steps.items() if one.counted}

    def after(self, optimizer: str) -> StepMark | None:
        """Return the synchronous step that reads have to come after, if any."""
        steps = self._steps[optimizer]
        closed = steps.permit.closed if steps.permit is not None else 0
        step = max(steps.counted, closed)
        return StepMark(group=optimizer, step=step) if step else None

    def all_after(self) -> Iterator[StepMark]:
        """Return these steps of all optimizers."""
        return filter(None, map(self.after, self._steps))


_LAST = (1 << 64) - 1


def finish(servers: ServerGroup, mark: StepMark, wait: float = 0.0) -> None:
    """Finish the steps of a group, up to one, that all servers have closed.

    Each worker does so after it has committed its part. The last one to do so finds the step closed
    on all servers, whatever the order in which they closed it; should it end before it has told
    them, the others do it when they wait for the step, for so many seconds.

    Raises:
        NonFiniteGradientError: A gradient is not finite, and the limits want no such.
    """
    for step, norm in _unfinished(servers, mark, wait):
        servers.call_all({server: finish_step(step, norm) for server in servers.used})


def _unfinished(
    servers: ServerGroup, mark: StepMark, wait: float = 0.0
) -> Iterator[tuple[StepMark, GlobalNorm]]:
    """Yield the steps of a group, up to one, that all servers have closed, unless all are finished.

    The norm of each comes with it.
    """
    answers = servers.call_all({server: closed_steps(mark, wait) for server in servers.used})
    known = [answers[server] for server in sorted(answers)]
    numbers = {number for one in known for number, share in one.items() if not share.finished}
    for number in sorted(numbers):
        shares = [one[number] for one in known if number in one]
        if len(shares) < len(known):
            return
        yield StepMark(group=mark.group, step=number), _norm(shares)


def finish_all(servers: ServerGroup) -> None:
    """Finish all steps of all groups that all servers have closed.

    A worker that has ended may have told only some of the servers. A task that may not call all of
    them leaves that to others.
    """
    for mark in _groups(servers):
        finish(servers, mark)


def first_unfinished(servers: ServerGroup) -> StepMark | None:
    """Return a step that `finish_all` would finish; None if there is none."""
    steps = (step for mark in _groups(servers) for step, _ in _unfinished(servers, mark))
    return next(steps, None)


def _groups(servers: ServerGroup) -> Iterator[StepMark]:
    """Yield the last step of each group that takes synchronous ones, or has.

    None if this task may not call all servers.
    """
    if len(servers.called) == len(servers.used):
        for group in servers.call(servers.used[0], describe()):
            if group.completed or decoded_consistency(group.consistency)._closes_steps:
                yield StepMark(group=group.group, step=_LAST)


def _norm(shares: Sequence[ClosedStep]) -> GlobalNorm:
    """Return the norm of a step, given what each server has of it, in their order."""
    spoilt = [each.nonfinite_variable for each in shares if each.nonfinite_variable]
    return GlobalNorm(
        value=math.sqrt(sum(each.squares for each in shares)),
        nonfinite_variable=spoilt[0] if spoilt else "",
    )


# After these, a contribution counts on some servers and not yet on others.
_UNDECIDED = AbortedError, DeadlineExceededError, UnavailableError


@dataclass(frozen=True)
class Staged:
    """What all servers have of a step, and what does not count yet.

    Attributes:
        contribution: To which step, and how.
        batches: What the servers have.
    """

    contribution: Contribution
    batches: Sequence[ServerBatch]


class Contributions:
    """Commits what is staged on all servers. Thread-safe.

    Who is interrupted may have committed it on some of them only. The step would then be complete
    there and open elsewhere, so it is ended before another one begins.

    Args:
        servers: The servers.
        step_tracker: How far this worker is.
        peer_seconds: How long a server may wait for other workers.

    Attributes:
        staged: What does not count yet, or not on all servers; None between steps.
        is_settled: Whether neither this process nor the one that was the same task before has left
            a step that may count on some servers only.
    """

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, peer_seconds: float
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._peer_seconds = peer_seconds
        self.staged: Staged | None = None
        self.is_settled = step_tracker.worker is None
        self._has_predecessor = not self.is_settled
        self._committing = threading.Lock()

    def commit(self, staged: Staged) -> None:
        """Have a contribution count, unless others have closed the step without it."""
        with self._committing:
            self.staged, self.is_settled = staged, False
            self._end(staged)
            self.is_settled = True

    def settle(self) -> None:
        """End the step in which this worker was interrupted, or its process ended, if any.

        It is to be called before a step begins, and before anything is asked for that says which
        step is next.
        """
        if self.is_settled:
            return
        with self._committing:
            if self.staged is not None:
                self._end(self.staged)
            if self._has_predecessor:
                self._end_predecessors()
                self._has_predecessor = False
            self.is_settled = True

    def _end_predecessors(self) -> None:
        """Have the step count on all servers to which the process before has committed on some.

        To repeat it is no way out: others may have closed it there, so that its values are gone.
        """
        servers, worker = self._servers, self._step_tracker.worker
        if len(servers.called) < len(servers.used):
            return
        answers = servers.call_all({server: list_committed() for server in servers.used})
        committed = {
            server: {one.group: one.step for one in answer if one.worker == worker}
            for server, answer in answers.items()
        }
        newest: dict[str, int] = {}
        for steps in committed.values():
            newest |= {name: max(step, newest.get(name, 0)) for name, step in steps.items()}
        first, *others = servers.used
        for server in (*others, first):
            for name, step in newest.items():
                if committed[server].get(name, 0) < step:
                    mark = StepMark(group=name, step=step)
                    # Who has lost it gets another contribution when the step is repeated.
                    with suppress(UnstagedContributionError):
                        servers.call(server, updates.commit(mark, self._peer_seconds, True))
                        finish(servers, mark)
                        committed[server][name] = step
        self._step_tracker.note_committed(committed[first])

    def _end(self, staged: Staged) -> None:
        try:
            self._count(staged)
        except _UNDECIDED:
            # Some servers may have heard of it.
            raise
        except StratagemError:
            # To repeat it would change nothing.
            self.staged = None
            raise
        mark = staged.contribution.step
        self._step_tracker.finish(mark.group, mark.step)
        self.staged = None

    def _count(self, staged: Staged) -> None:
        contribution = staged.contribution
        if not self._is_counted(contribution):
            return
        if contribution.global_norm:
            finish(self._servers, contribution.step)
        for batch in staged.batches:
            batch.arrived()
        self._step_tracker.count(contribution.step)

    def _is_counted(self, contribution: Contribution) -> bool:
        """Commit; false if others have closed the step without this contribution."""
        mark = contribution.step
        first, *others = self._servers.used
        if contribution.replicas_to_aggregate:
            # The first server decides whose contributions count, on all servers.
            if self._commit_on([first], mark)[first].dropped:
                return False
            self._commit_on(others, mark)
            return True
        # The first server last: what counts there counts on all, so that a worker that ends here
        # and is started again knows what it has to repeat.
        try:
            self._commit_on(others, mark)
        except (*_UNDECIDED, UnstagedContributionError):
            raise
        except StratagemError:
            # The step has failed there, so it is to be over here, too.
            self._commit_on([first], mark)
            raise
        self._commit_on([first], mark)
        return True

    def _commit_on(
        self, servers: Sequence[int], mark: StepMark
    ) -> dict[int, CommitContributionResponse]:
        wait = self._peer_seconds
        return self._servers.call_all({server: updates.commit(mark, wait) for server in servers})
