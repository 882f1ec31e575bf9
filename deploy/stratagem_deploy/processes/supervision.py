"""What a run of several processes does when one of them ends or a signal comes."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from stratagem_deploy.processes.restarts import Restarts


class Supervision:
    """Takes events and answers with the signal to send to what still runs, or 0.

    Attributes:
        running: Names of the workers that have not ended, or are to be started again.
        restarts: Those that are. When the run ends, nobody is.
        failure: Name of the process that failed first for good, or "".
        interrupted: The signal that ended the run from outside, or 0.
    """

    def __init__(self, workers: Iterable[str], restarts: Restarts) -> None:
        self.running = set(workers)
        self.restarts = restarts
        self.failure = ""
        self.interrupted = 0
        self.exit_code = 0

    def ended(self, name: str, code: int, now: float) -> int:
        """Notes that a process has ended.

        Args:
            name: Its name; one that is no worker's is a server's.
            code: As `Popen.returncode`.
            now: Seconds of a monotonic clock.
        """
        # A server that ends before the script does has failed, whatever its code. What
        # it held has ended with it, so that no other can take its place.
        is_server = name not in self.running
        if not is_server and self.restarts.grant(name, code, now):
            return 0
        self.running.discard(name)
        if self.failure or (code == 0 and not is_server):
            return 0
        self.failure = name
        self.exit_code = 1 if is_server else self._code_of_script(code)
        self.running.difference_update(self.restarts.abandon())
        return 0 if self.interrupted else signal.SIGTERM

    def signalled(self, signum: int) -> int:
        """Passes a signal on; whoever sends a second one has lost patience."""
        if self.interrupted:
            return signal.SIGKILL
        self.interrupted = signum
        for name in self.restarts.abandon():
            self.ended(name, -signum, now=0.0)
        return signum

    def _code_of_script(self, code: int) -> int:
        """As a shell has it, and without our own SIGKILL after an interruption."""
        return code if code > 0 else 128 + (self.interrupted or -code)
