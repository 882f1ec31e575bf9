"""Contributions to synchronous steps: how they come to count, and what they lead to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from stratagem._parameter_server.hosting.step_reads import StepReads
from stratagem._parameter_server.pushing.global_norm import finish
from stratagem._parameter_server.pushing.push import Pushing
from stratagem._parameter_server.pushing.server_batches import ServerBatch
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.variables.cached_reads import unread
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import updates
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    StratagemError,
    UnavailableError,
    UnstagedContributionError,
)
from stratagem_proto.v1.parameter_server_pb2 import (
    CommitContributionResponse,
    Contribution,
    StepMark,
)

# After these, a contribution counts on some servers and not yet on others.
_UNDECIDED = AbortedError, DeadlineExceededError, UnavailableError


_LOG = logging.getLogger("stratagem")


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
    """

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, peer_seconds: float
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._peer_seconds = peer_seconds
        self._staged: Staged | None = None
        self._committing = threading.Lock()

    def commit(self, staged: Staged) -> None:
        """Have a contribution count, unless others have closed the step without it."""
        with self._committing:
            self._staged = staged
            self._end(staged)

    def end_interrupted(self) -> None:
        """End the step in which this worker was interrupted, if there is one."""
        if self._staged is None:
            return
        with self._committing:
            if self._staged is not None:
                self._end(self._staged)

    def _end(self, staged: Staged) -> None:
        try:
            self._count(staged)
        except _UNDECIDED:
            # Some servers may have heard of it.
            raise
        except StratagemError:
            # To repeat it would change nothing.
            self._staged = None
            raise
        mark = staged.contribution.step
        self._step_tracker.finish(mark.group, mark.step)
        self._staged = None

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
        return self._servers.together({server: updates.commit(mark, wait) for server in servers})


class StepEnds:
    """Leaves copies as the step that was taken last has made them."""

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, reads: StepReads, pushing: Pushing
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._reads, self._pushing = reads, pushing
        self._behind: tuple[Copies, StratagemError] | None = None

    def wait(self, copies: Copies) -> None:
        """Bring what a step has stepped up to date, when all have contributed.

        This worker's part counts already. So if others do not come, that is not raised here, but by
        what would be computed on old values: the next step, or refresh. A program that ends before
        has the log alone to tell it.
        """
        step_tracker = self._step_tracker
        # Others may change consistencies between two steps.
        begins = step_tracker.begins() if step_tracker.is_alone else []
        groups = {server: [*unread(some)] for server, some in copies.items()}
        try:
            with self._servers.steps.pausing():
                grants = self._reads.bring(groups, begins, training=True)
        except StratagemError as error:
            self._behind = copies, error
            _LOG.warning(
                "a step of this worker counts, but was not completed, and the parameters here are "
                "those before it; the next step, or refresh(), raises: %s",
                error,
            )
            return
        if grants:
            step_tracker.granted(begins, grants)
            self._pushing.drop(fresh=[*chain.from_iterable(groups.values())])

    def require_fresh(self) -> None:
        """Refuse a step that was not computed on the values of all steps before."""
        if self._behind is not None:
            copies, error = self._behind
            self._reads.bring(copies, training=True)
            self._behind = None
            raise error

    def note_fresh(self, variables: Iterable[RemoteVariable]) -> None:
        """Take note that copies were brought up to date since."""
        if self._behind is not None:
            stepped = chain.from_iterable(self._behind[0].values())
            if set(stepped) <= set(variables):
                self._behind = None
