"""Warning of models that belong to no strategy though several workers train."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

_LOG = logging.getLogger("stratagem")


class _Workers:
    """The strategies of this process, some of which train together with other workers."""

    def __init__(self) -> None:
        # Whether there is nothing to warn of for a strategy, or no more.
        self._warned: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def add(self, strategy: object, has_others: bool) -> None:
        """Take a strategy in, which trains alone or with other workers."""
        self._warned[strategy] = not has_others

    def leave_out(self, strategy: object) -> None:
        """Warn no longer of a strategy, which has been closed."""
        self._warned.pop(strategy, None)

    def warn_of(self, strategy: object | None, what: str) -> None:
        """Say once that each worker trains something by itself.

        Args:
            strategy: Under which that happens, if it is one with other workers.
            what: What trains it.
        """
        if strategy is None or self._warned.get(strategy, True):
            return
        self._warned[strategy] = True
        _LOG.warning(
            "%s trains parameters that were made in no scope of %s: each worker trains "
            "its own, and they drift apart. Build the model inside `with "
            "strategy.scope():`, if all are to train the same.",
            what,
            type(strategy).__name__,
        )

    def warn_of_any(self, what: str) -> None:
        """As `warn_of`, of the strategy that was made last, if there is one."""
        if strategies := list(self._warned):
            self.warn_of(strategies[-1], what)


workers = _Workers()
