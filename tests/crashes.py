"""Tells how a process of pytest-xdist has crashed, and where, after the failures.

Python's report of a fatal error goes to the output of all processes, minutes before the run ends.
"""

from __future__ import annotations

import faulthandler
import os
import re
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from stratagem_deploy.processes.process import describe_exit

_FILE = "crash_report"

_PYTEST = re.compile(r"/(_pytest|pluggy|xdist|execnet)/|^Extension modules")


class Crashes:
    """What processes that crashed have left; it is a plugin of the process that starts them."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._told: list[str] = []

    def pytest_configure_node(self, node: Any) -> None:
        """Say where a process that starts is to report a crash."""
        node.workerinput[_FILE] = str(Path(self._folder.name, node.gateway.id))

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note how a process has ended that should not have."""
        if error:
            where = _without_pytest(Path(node.workerinput[_FILE]))
            self._told.append(f"{node.gateway.id} {_end_of(node)}\n{where}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show all of it."""
        for told in self._told:
            terminalreporter.section("a process of pytest-xdist has crashed")
            terminalreporter.write_line(told)

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind."""
        self._folder.cleanup()


def _without_pytest(report: Path) -> str:
    lines = report.read_text().splitlines() if report.exists() else []
    return "\n".join(line for line in lines if not _PYTEST.search(line))


def _end_of(node: Any) -> str:
    # execnet keeps its process to itself.
    process = node.gateway._io.popen
    try:
        return f"ended with {describe_exit(process.wait(10))}"
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
