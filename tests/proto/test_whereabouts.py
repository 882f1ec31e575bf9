"""Where a thread is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from stratagem_proto.whereabouts import whereabouts

# A collection that frees a local of threads, at each allocation.
_COLLECTING = """
import gc
import threading

from stratagem_proto.whereabouts import whereabouts


class Cycle:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.value = 1


gc.set_threshold(1)
for _ in range(5000):
    Cycle()
    assert "in <module>" in whereabouts(threading.get_ident())
assert gc.isenabled()
"""


def test_the_line_of_the_program_comes_first() -> None:
    assert whereabouts(threading.get_ident()).startswith("test_whereabouts.py:")


def test_a_thread_that_has_ended_is_nowhere() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert whereabouts(thread.ident or 0) == ""


def test_garbage_that_is_collected_meanwhile_locks_nobody_up() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _COLLECTING], env=environment, check=True, timeout=100)
