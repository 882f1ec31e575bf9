"""How a process of pytest-xdist has crashed is told after the failures."""

from __future__ import annotations

import os
import sys

import pytest

from tests.full import a_few

pytest_plugins = ("pytester",)

WITHOUT_CORE = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"

CRASHES = {
    "os.kill(os.getpid(), signal.SIGKILL)": ["gw0 ended with signal SIGKILL"],
    "ctypes.string_at(0)": [
        "gw0 ended with signal SIGSEGV",
        "Fatal Python error: Segmentation fault",
        "*test_it.py*in test_it",
    ],
}


@a_few("crash", CRASHES, "another crash is told in the same way")
def test_a_crash_is_told(
    crash: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    pytester.makepyfile(
        test_it=f"{WITHOUT_CORE}import ctypes, os, signal\n\ndef test_it():\n    {crash}"
    )
    options = ("-p", "tests.crashes", "--numprocesses=1", "--max-worker-restart=0")
    told = pytester.runpytest_subprocess(*options).stdout
    told.fnmatch_lines(["*a process of pytest-xdist has crashed*", *CRASHES[crash]])
    told.no_fnmatch_line("*_pytest/*")


def test_a_run_ends_though_another_process_hangs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    pytester.makeconftest("import tests.crashes\ntests.crashes.LEFT_SECONDS = 1.0")
    pytester.makepyfile(
        test_one="import os, signal, pathlib, time\n\ndef test_it():\n"
        "    while not pathlib.Path('hangs').exists():\n        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
        test_other=f"{WITHOUT_CORE}import pathlib, threading\n\ndef test_that_hangs():\n"
        "    pathlib.Path('hangs').touch()\n    threading.Event().wait()\n",
    )
    options = ("-p", "tests.crashes", "--numprocesses=2", "--max-worker-restart=0", "--timeout=0")
    told = pytester.runpytest_subprocess(*options).stdout
    told.fnmatch_lines(["*ended with signal SIGABRT", "*test_other.py*in test_that_hangs"])
