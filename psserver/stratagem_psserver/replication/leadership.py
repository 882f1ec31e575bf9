"""The view in which a replica leads, and asking the arbiter for another one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from stratagem_proto.errors import UnavailableError
from stratagem_proto.server_log import LOG
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.arbiters.arbiter import Arbiter
from stratagem_psserver.replication.views import is_primary

_RETRY_SECONDS = 0.1

# How often a primary asks whether it still is the one, which only a wrong deployment can change.
_CONFIRM_SECONDS = 5.0


class Leadership:
    """What a primary knows of its view, which only the arbiter changes.

    Args:
        me: The replica.
        view: The view in which it is the primary.
        arbiter: Who decides about views.
        label: The task, for messages.
        clock: Returns the time in seconds.

    Attributes:
        view: The present view.
    """

    def __init__(
        self, me: Replica, view: View, arbiter: Arbiter, label: str, clock: Callable[[], float]
    ) -> None:
        self.view = view
        self._me, self._arbiter, self._label, self._clock = me, arbiter, label, clock
        self._until = math.inf
        self._confirm_at = clock() + _CONFIRM_SECONDS

    @property
    def has_backup(self) -> bool:
        """Whether the view names a backup."""
        return self.view.HasField("backup")

    def end_within(self, seconds: float) -> None:
        """Ask no longer than that: a replica that leaves need not know for ever."""
        self._until = self._clock() + seconds

    async def propose(self, following: View, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Ask for a view until there is an answer; return whether it is known to be granted.

        Args:
            following: The view.
            is_wanted: Whether to ask again. What is wanted no more may have been granted.
        """
        while True:
            try:
                return await self._is_granted(following)
            except UnavailableError as error:
                LOG.warning("the arbiter does not answer", task=self._label, why=error.message)
            if self._clock() >= self._until:
                return False
            await asyncio.sleep(_RETRY_SECONDS)
            if not is_wanted():
                return False

    async def _is_granted(self, following: View) -> bool:
        granted = await self._arbiter.replace(self.view, following)
        # An earlier attempt may have been granted, and only the answer was lost.
        if granted or await self._arbiter.read() == following:
            self.view = following
            return True
        return False

    async def confirm(self) -> bool:
        """Ask now and then whether the replica still leads; return False if it does not."""
        if self._clock() < self._confirm_at:
            return True
        self._confirm_at = self._clock() + _CONFIRM_SECONDS
        with suppress(UnavailableError):
            present = await self._arbiter.read()
            return present is not None and is_primary(present, self._me)
        return True
