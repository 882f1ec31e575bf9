"""What a run of several processes does when one of them ends or a signal comes."""

from __future__ import annotations

import signal
from collections.abc import Iterable


class Supervision:
    """Takes events and answers with the signal to send to what still runs, or 0.

    Attributes:
        running: Names of the workers that have not ended.
        failure: Name of the process that failed first, or "".
        interrupted: The signal that ended the run from outside, or 0.
    """

    def __init__(self, workers: Iterable[str]) -> None:
        self.running = set(workers)
        self.failure = ""
        self.interrupted = 0
        self.exit_code = 0

    def ended(self, name: str, code: int) -> int:
        """Notes that a process has ended.

        Args:
            name: Its name; one that is no worker's is a server's.
            code: As `Popen.returncode`.
        """
        # A server that ends before the script does has failed, whatever its code.
        is_server = name not in self.running
        self.running.discard(name)
        if self.failure or (code == 0 and not is_server):
            return 0
        self.failure = name
        self.exit_code = 1 if is_server else self._code_of_script(code)
        return 0 if self.interrupted else signal.SIGTERM

    def signalled(self, signum: int) -> int:
        """Passes a signal on; whoever sends a second one has lost patience."""
        if self.interrupted:
            return signal.SIGKILL
        self.interrupted = signum
        return signum

    def _code_of_script(self, code: int) -> int:
        """As a shell has it, and without our own SIGKILL after an interruption."""
        return code if code > 0 else 128 + (self.interrupted or -code)
