"""Interactive shells on a terminal of their own, in which somebody presses TAB."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stratagem_deploy.processes.process import import_path

_SECONDS = 60.0


class Shell(NamedTuple):
    """A shell, and what it is told before somebody types.

    Attributes:
        command: What starts it.
        prepared: Lines that it reads first.
    """

    command: tuple[str, ...]
    prepared: tuple[str, ...]


# The function stands in the way of what is typed, but not of what completes it.
_SHOW = "stratagem() { printf 'word:%s:\\n' \"$@\"; }"
SHELLS = {
    "bash": Shell(
        ("bash", "--noprofile", "--norc", "-i"),
        ('eval "$(env _STRATAGEM_COMPLETE=source_bash stratagem)"', _SHOW),
    ),
    "zsh": Shell(
        ("zsh", "-f", "-i"),
        (
            "autoload -Uz compinit; compinit -D -u",
            'eval "$(env _STRATAGEM_COMPLETE=source_zsh stratagem)"',
            _SHOW,
        ),
    ),
}


def installed(folder: Path) -> dict[str, str]:
    """Puts the command into a folder, and returns the environment in which shells find it."""
    command = folder / "stratagem"
    command.write_text(f"#!{sys.executable}\nfrom stratagem_deploy.cli import main\n\nmain()\n")
    command.chmod(0o755)
    return {
        **os.environ,
        **import_path(),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "dumb",
        "PS1": "$ ",
    }


class Terminal:
    """A shell that reads what is typed."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it in a folder."""
        shell = SHELLS[name]
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            shell.command,
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        for line in (*shell.prepared, "echo pre''pared"):
            self._type(f"{line}\n")
        self._read_to("prepared")

    def words(self, line: str) -> list[str]:
        """The arguments of the command that a line becomes by TAB and Return."""
        self._type(f"{line}\t")
        self._type("\necho en''ded\n")
        return re.findall(r"word:(.*?):\r?\n", self._read_to("ended"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _read_to(self, end: str) -> str:
        """What the terminal shows until a line that is `end`."""
        shown, deadline = "", time.monotonic() + _SECONDS
        while not re.search(rf"^{end}\r?$", shown, re.MULTILINE):
            assert time.monotonic() < deadline, f"no {end!r} in {shown!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                with suppress(BlockingIOError):
                    shown += os.read(self._master, 1 << 16).decode(errors="replace")
        return shown


@contextmanager
def terminal(name: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal with a shell, in a block."""
    opened = Terminal(name, folder, environment)
    try:
        yield opened
    finally:
        opened.close()


def is_installed(name: str) -> bool:
    return shutil.which(name) is not None
