"""A directory that only this user reads and that no death leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stratagem_deploy.processes import sweeper


class PrivateDirectory:
    """A temporary directory of mode 0700, removed even if this process is killed.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Ctrl-C at the terminal must not end it before the others.
            start_new_session=True,
        )
        assert self._sweeper.stdout
        self.path = Path(self._sweeper.stdout.readline().rstrip("\n"))

    def write_secret(self, name: str, secret: str) -> Path:
        """Write a file of mode 0600."""
        path = self.path / name
        path.touch(mode=0o600)
        path.write_text(secret, encoding="utf-8")
        return path

    def close(self) -> None:
        """Remove the directory with everything in it; harmless when repeated."""
        if self._sweeper.poll() is None:
            self._sweeper.communicate()
