"""Interrupting what a thread runs hits that and nothing else."""

from __future__ import annotations

import cProfile
import gc
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stratagem import Variable
from stratagem._core.waiting import is_interruptible, uninterrupted
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE
from stratagem_worker.functions import Interrupted, Interruptible
from tests.client.clusters import running
from tests.waiting import eventually
from tests.worker.links import PATIENCE

# A collection that frees a local of threads, at each allocation.
_COLLECTING = """
import gc
import threading

from stratagem_worker.functions import _is_in_the_midst


class Cycle:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.value = 1


gc.set_threshold(1)
for _ in range(5000):
    Cycle()
    assert not _is_in_the_midst(threading.get_ident())
"""


def spin() -> str:
    total = 0
    for number in range(200):
        total += number
    return "ended"


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def for_ever() -> str:
    while True:
        pass


BODIES = {"long": for_ever, "short": spin, "other": spin}


def test_whenever_it_comes_only_what_was_meant_is_interrupted(restless: None) -> None:
    interruptible, ended = Interruptible[str](), threading.Event()

    def strike() -> None:
        while not ended.is_set():
            interruptible.interrupt(lambda name: name != "other")

    striker = threading.Thread(target=strike)
    striker.start()
    outcomes = Counter(
        (name, interruptible.run(name, body, lambda: "given up"))
        for _ in range(100)
        for name, body in BODIES.items()
    )
    ended.set()
    striker.join()
    assert outcomes["long", "given up"] == 100
    assert outcomes["other", "ended"] == 100
    assert outcomes["short", "given up"] + outcomes["short", "ended"] == 100


def test_nothing_is_interrupted_twice() -> None:
    interruptible, ready = Interruptible[str](), threading.Event()

    def strike() -> None:
        ready.wait()
        for _ in range(2):
            interruptible.interrupt(lambda name: True)

    def stubborn() -> str:
        with suppress(Interrupted):
            ready.set()
            for_ever()
        striker.join()
        return spin()

    striker = threading.Thread(target=strike)
    striker.start()
    assert interruptible.run("stubborn", stubborn, lambda: "given up") == "ended"


HALF_WAY, GOES_ON = threading.Event(), threading.Event()

MODULE = f"""
from {__name__} import GOES_ON, HALF_WAY
HALF_WAY.set()
GOES_ON.wait()
IS_WHOLE = True
"""


def test_a_module_is_imported_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_imported.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    interruptible = Interruptible[str]()

    def importing() -> str:
        import_module("half_imported")
        return for_ever()

    def strike() -> None:
        HALF_WAY.wait()
        interruptible.interrupt(lambda name: True)

    def go_on() -> None:
        eventually(lambda: interruptible._struck)
        GOES_ON.set()

    others = [threading.Thread(target=each) for each in (strike, go_on)]
    for thread in others:
        thread.start()
    assert interruptible.run("importing", importing, lambda: "given up") == "given up"
    for thread in others:
        thread.join()
    assert sys.modules.pop("half_imported").IS_WHOLE


def test_a_thread_that_runs_nothing_is_left_alone() -> None:
    interruptible = Interruptible[str]()
    interruptible.interrupt(lambda name: True)
    assert interruptible.run("first", spin, lambda: "given up") == "ended"
    interruptible.interrupt(lambda name: True)
    assert spin() == "ended"


def test_what_runs_may_give_itself_up() -> None:
    def give_up() -> str:
        raise Interrupted

    assert Interruptible[str]().run("it", give_up, lambda: "given up") == "given up"


def test_errors_of_what_runs_are_its_own() -> None:
    with pytest.raises(ZeroDivisionError):
        Interruptible[str]().run("it", lambda: 1 // 0, lambda: 0)


def test_what_runs_can_be_profiled() -> None:
    interruptible, ended = Interruptible[str](), threading.Event()

    def run_twice() -> None:
        interruptible.run("first", spin, lambda: "given up")
        # CPython 3.11 stays here for ever if it looks out for an interruption.
        cProfile.Profile().runcall(spin)
        ended.set()

    threading.Thread(target=run_twice, daemon=True).start()
    assert ended.wait(PATIENCE)


def struck_when(entered: threading.Event, body: Callable[[], object]) -> object:
    """What becomes of a body that is interrupted once it has got to some place."""
    interruptible = Interruptible[str]()

    def strike() -> None:
        assert entered.wait(PATIENCE)
        interruptible.interrupt(lambda _: True)

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        return interruptible.run("it", body, lambda: "given up")
    finally:
        striker.join()


def test_where_it_may_not_come_what_is_waited_for_is_given_up() -> None:
    entered, released = threading.Event(), threading.Event()
    ended: list[bool] = []

    def body() -> None:
        with uninterrupted(released.set):
            entered.set()
            ended.append(released.wait(PATIENCE))
        ended.append(False)

    assert struck_when(entered, body) == "given up"
    assert ended == [True]


def test_it_may_not_come_before_the_outermost_has_ended() -> None:
    entered, released = threading.Event(), threading.Event()
    ended: list[str] = []

    def body() -> None:
        with uninterrupted(released.set):
            entered.set()
            with uninterrupted():
                assert released.wait(PATIENCE)
            ended.append("inner")
        ended.append("outer")

    assert struck_when(entered, body) == "given up"
    assert ended == ["inner"]


def test_threads_of_a_function_are_not_held_off() -> None:
    entered = threading.Event()

    def body() -> None:
        other = threading.Thread(target=copy_context().run, args=(hold,))
        other.start()
        other.join()
        for_ever()

    def hold() -> None:
        with uninterrupted():
            assert not is_interruptible()
            entered.set()

    assert struck_when(entered, body) == "given up"


@pytest.mark.full("it takes eight seconds of garbage")
def test_garbage_that_is_collected_meanwhile_locks_nobody_up() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _COLLECTING], env=environment, check=True, timeout=100)


@pytest.mark.full("whenever it comes, only what was meant is interrupted")
def test_it_does_not_come_where_python_drops_it() -> None:
    """Most of the time, a `__del__` runs."""

    class Garbage:
        def __del__(self) -> None:
            sum(number for number in range(20))

    for _ in range(100):
        entered = threading.Event()

        def leave_garbage(entered: threading.Event = entered) -> None:
            entered.set()
            while True:
                Garbage()

        assert struck_when(entered, leave_garbage) == "given up"


@pytest.fixture
def slow_collections() -> Iterator[None]:
    def called(phase: str, info: dict[str, int]) -> None:
        sum(number for number in range(4))

    gc.callbacks.append(called)
    yield
    gc.callbacks.remove(called)


@pytest.mark.full("that nobody is locked up by garbage is shown above")
@pytest.mark.usefixtures("slow_collections")
def test_it_does_not_come_where_the_collector_calls_back() -> None:
    for _ in range(20):
        entered = threading.Event()

        def collect(entered: threading.Event = entered) -> None:
            entered.set()
            while True:
                gc.collect(0)

        assert struck_when(entered, collect) == "given up"


def test_a_function_that_starts_threads_waits_for_none_that_never_begins() -> None:
    for _ in range(200):
        entered = threading.Event()

        def start_threads(entered: threading.Event = entered) -> None:
            entered.set()
            while True:
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()

        assert struck_when(entered, start_threads) == "given up"


@pytest.mark.parametrize("transport", [AUTO, TCP, GRPC])
def test_a_function_that_waits_for_a_server_leaves_the_connection_usable(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
    with running(1, num_workers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            variable = Variable(0)
        for number in range(20):
            entered = threading.Event()

            def wait(name: str = f"{number}", entered: Any = entered) -> None:
                entered.set()
                strategy.barrier(name)

            assert struck_when(entered, wait) == "given up"
            assert variable.numpy() == 0


def test_a_function_that_connects_to_a_server_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, TCP)
    connect, waiting, connecting = socket.create_connection, threading.Event(), threading.Event()

    def connected_slowly(*arguments: Any) -> socket.socket:
        connected = connect(*arguments)
        connecting.set()
        sum(1 for _ in range(200_000))
        return connected

    with running(1, num_workers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            variable = Variable(0)

        def wait() -> None:
            waiting.set()
            strategy.barrier("nobody-else")

        # This closes the only connection.
        assert struck_when(waiting, wait) == "given up"
        monkeypatch.setattr(socket, "create_connection", connected_slowly)
        assert struck_when(connecting, variable.numpy) == "given up"
        assert variable.numpy() == 0
        gc.collect()
