"""How a process of pytest-xdist has crashed is told after the failures."""

from __future__ import annotations

import os
import sys

import pytest

from tests.full import a_few

pytest_plugins = ("pytester",)

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
    pytester.makepyfile(test_it=f"import ctypes, os, signal\n\ndef test_it():\n    {crash}\n")
    options = ("-p", "tests.crashes", "--numprocesses=1", "--max-worker-restart=0")
    told = pytester.runpytest_subprocess(*options).stdout
    told.fnmatch_lines(["*a process of pytest-xdist has crashed*", *CRASHES[crash]])
    told.no_fnmatch_line("*_pytest/*")
