"""The parameters in the program of a coordinator, which functions train on workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from stratagem._core.contexts import cross_replica, current_replica_id
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem_proto.errors import CancelledError


class OwnParameters:
    """Brings the program's parameters up to date once all functions have ended.

    The program can then evaluate its modules in plain code, as it could if it had trained them
    itself. While functions run, values would be old at once. `ended` returns how many functions
    have ended, or None while some have not.
    """

    def __init__(self, strategy: ParameterServerStrategy, ended: Callable[[], int | None]) -> None:
        self._strategy = strategy
        self._ended = ended
        self._seen = 0

    def refresh(self) -> None:
        """Read them, if functions have ended since the last time and none is left.

        In a replica they stay what it works with, and so they do once the strategy is closed. What
        the program has a value of is seen by later functions, whether others are left or not.
        """
        if current_replica_id() is not None:
            return
        ended = self._ended()
        if ended == self._seen:
            return
        self._hosting.seen += 1
        if ended is None:
            return
        with suppress(CancelledError), cross_replica(self._strategy):
            self._hosting.refresh_parameters()
        self._seen = ended

    @property
    def _hosting(self) -> RemoteHosting:
        extended = self._strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        return extended._hosting
