"""Waiting for the ends of synchronous steps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from stratagem._parameter_server.variables.cached_reads import unread
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable
from stratagem_proto.errors import StratagemError

if TYPE_CHECKING:
    from stratagem._parameter_server.hosting.store import RemoteStore


class StepEnds:
    """Leaves copies as the step that was taken last has made them.

    Args:
        store: The variables on the servers.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._behind: tuple[Copies, StratagemError] | None = None

    def wait(self, copies: Copies) -> None:
        """Bring what a step has stepped up to date, when all have contributed.

        This worker's part counts already. So if others do not come, that is not raised
        here, but by what would be computed on old values: the next step, or refresh.

        Args:
            copies: What was stepped.
        """
        store = self._store
        # Others may change consistencies between two steps.
        begins = store.step_tracker.begins() if store.step_tracker.is_alone else []
        groups = {server: [*unread(some)] for server, some in copies.items()}
        try:
            with store.servers.steps.pausing():
                grants = store.bring(groups, begins, training=True)
        except StratagemError as error:
            self._behind = copies, error
            return
        if grants:
            store.step_tracker.granted(begins, grants)
            store.pushes.cover(chain.from_iterable(groups.values()))

    def require_fresh(self) -> None:
        """Check that a step was computed on values of all steps before.

        Raises:
            StratagemError: It was not, for this reason. Nothing of it was sent.
        """
        if self._behind is not None:
            copies, error = self._behind
            self._store.bring(copies, training=True)
            self._behind = None
            raise error

    def note_fresh(self, variables: Iterable[RemoteVariable]) -> None:
        """Take note that copies were brought up to date since."""
        if self._behind is not None:
            stepped = chain.from_iterable(self._behind[0].values())
            if set(stepped) <= set(variables):
                self._behind = None
