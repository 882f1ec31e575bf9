"""Tells how a process of pytest-xdist has crashed, and where, after the failures.

Python's report of a fatal error goes to the output of all processes, minutes before the run ends.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import pytest

from stratagem_deploy.processes.process import describe_exit

_FILE = "crash_report"

LEFT_SECONDS = 600.0
"""What others are left to end in when one has crashed; one that hangs in C hears of no timeout."""

_PYTEST = re.compile(r"/(_pytest|pluggy|xdist|execnet)/|^Extension modules")


class Crashes:
    """What processes that crashed have left; it is a plugin of the process that starts them."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._told: list[str] = []
        self._nodes: list[Any] = []
        self._end: Timer | None = None

    def pytest_configure_node(self, node: Any) -> None:
        """Say where a process that starts is to report a crash."""
        self._nodes.append(node)
        node.workerinput[_FILE] = str(Path(self._folder.name, node.gateway.id))

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note how a process has ended that should not have, and see to it that others end, too."""
        if error:
            if self._end is None:
                self._end = Timer(LEFT_SECONDS, self._abort_all)
                self._end.daemon = True
                self._end.start()
            where = _without_pytest(Path(node.workerinput[_FILE]))
            self._told.append(f"{node.gateway.id} {_end_of(node)}\n{where}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show all of it."""
        for told in self._told:
            terminalreporter.section("a process of pytest-xdist has crashed")
            terminalreporter.write_line(told)

    def _abort_all(self) -> None:
        """Have those that still run tell where, and end."""
        for node in self._nodes:
            with suppress(ProcessLookupError):
                os.kill(_process_of(node).pid, signal.SIGABRT)

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind."""
        if self._end is not None:
            self._end.cancel()
        self._folder.cleanup()


def _without_pytest(report: Path) -> str:
    lines = report.read_text().splitlines() if report.exists() else []
    return "\n".join(line for line in lines if not _PYTEST.search(line))


def _process_of(node: Any) -> Popen[bytes]:
    # execnet keeps its process to itself.
    process: Popen[bytes] = node.gateway._io.popen
    return process


def _end_of(node: Any) -> str:
    try:
        return f"ended with {describe_exit(_process_of(node).wait(10))}"
    except TimeoutExpired:
        return "runs, and has closed its pipe"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have this process tell of its crash, or of those of the processes that it starts."""
    given = getattr(config, "workerinput", None)
    if given is not None:
        # A descriptor stays open until the process ends.
        faulthandler.enable(os.open(given[_FILE], os.O_WRONLY | os.O_CREAT))
    elif config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(Crashes())
