"""The thread of a simulated server that writes its log."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.server_run import PRESENT_RUN


class SimulatedThread:
    """Stands where a pool of one thread does, whose work is done before it is shut down."""

    def __init__(self, *_: object, **__: object) -> None:
        self._is_shut_down = False
        self._left: list[Callable[[], None]] = []

    def submitted(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what does some work, unless it is done before."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._left.append(work)
        return lambda: self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        if work in self._left:
            self._left.remove(work)
            work()

    def shutdown(self) -> None:
        """Do what is left, unless the process has ended, and take no more."""
        self._is_shut_down = True
        run = PRESENT_RUN.get()
        for work in self._left.copy():
            if run is not None and not run.has_ended:
                self._do(work)
