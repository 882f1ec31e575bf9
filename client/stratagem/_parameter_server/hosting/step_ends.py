"""Waiting for the ends of synchronous steps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from stratagem._parameter_server.hosting.step_reads import StepReads
from stratagem._parameter_server.pushing.push import Pushing
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.variables.cached_reads import unread
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable
from stratagem._ps_client.group import ServerGroup
from stratagem_proto.errors import StratagemError


class StepEnds:
    """Leaves copies as the step that was taken last has made them.

    Args:
        servers: The servers.
        step_tracker: How far this worker is in its steps.
        reads: Brings copies up to date.
        pushing: Learns of copies that are.
    """

    def __init__(
        self,
        servers: ServerGroup,
        step_tracker: StepTracker,
        reads: StepReads,
        pushing: Pushing,
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._reads, self._pushing = reads, pushing
        self._behind: tuple[Copies, StratagemError] | None = None

    def wait(self, copies: Copies) -> None:
        """Bring what a step has stepped up to date, when all have contributed.

        This worker's part counts already. So if others do not come, that is not raised
        here, but by what would be computed on old values: the next step, or refresh.

        Args:
            copies: What was stepped.
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
            return
        if grants:
            step_tracker.granted(begins, grants)
            self._pushing.drop(fresh=[*chain.from_iterable(groups.values())])

    def require_fresh(self) -> None:
        """Check that a step was computed on values of all steps before.

        Raises:
            StratagemError: It was not, for this reason. Nothing of it was sent.
        """
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
