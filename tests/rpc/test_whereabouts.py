"""Where a thread is."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading

import pytest

from stratagem_rpc.whereabouts import stacks, whereabouts

# A collection that frees a local of threads, at each allocation.
_COLLECTING = """
import gc
import threading

from stratagem_rpc.whereabouts import whereabouts


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

# Each collection in the first thread lets the other one go on, the frames of which come and go.
_GOING_ON = """
import gc
import os
import sys
import threading
import time

from stratagem_rpc.whereabouts import stack_of

first = threading.get_ident()


def deep(depth):
    if depth:
        deep(depth - 1)


def work():
    while True:
        deep(400)


other = threading.Thread(target=work, daemon=True)
other.start()
gc.callbacks.append(lambda *_: threading.get_ident() == first and time.sleep(0))
sys.setswitchinterval(1e-5)
gc.set_threshold(1)
for _ in range(2000):
    assert stack_of(other.ident)[-1].f_code.co_name == "_bootstrap"
os._exit(0)
"""


def test_the_line_of_the_program_comes_first() -> None:
    assert whereabouts(threading.get_ident()).startswith("test_whereabouts.py:")


def test_threads_that_threading_does_not_know_have_stacks_as_well() -> None:
    """Those of autograd, for instance, in which hooks run."""
    begun, ending = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        ending.wait(20)

    ident = _thread.start_new_thread(wait, ())
    assert begun.wait(20)
    names = [frame.f_code.co_name for frame in stacks()[ident]]
    ending.set()
    assert names[-1] == "wait"


def test_a_thread_that_has_ended_is_nowhere() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert whereabouts(thread.ident or 0) == ""


@pytest.mark.parametrize("program", [_COLLECTING, _GOING_ON], ids=["locks", "frames"])
def test_garbage_that_is_collected_meanwhile_does_no_harm(program: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=100)
