"""Networks that are slow, and what is told of training over them."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.harness.delays import DelayedSwitch
from benchmarks.harness.namespace import Namespace, missing
from benchmarks.harness.network import addresses, set_up
from benchmarks.scaling.hosts import NEEDED
from benchmarks.slow_networks.__main__ import step_of

DELAY = 0.05
ANSWERS = "import socket; socket.create_server(('{}', 2222)).accept()[0].sendall(b'here')"
ASKS = """
import socket, time
began = time.monotonic()
with socket.create_connection(('{}', 2222), 60) as asked:
    assert asked.recv(4) == b'here'
print(time.monotonic() - began)
"""


def test_a_loss_is_reached_between_the_steps_that_are_known() -> None:
    losses = {"50": 3.0, "100": 2.0, "150": 1.5}
    assert step_of(losses, 2.25) == 87.5
    assert step_of(losses, 1.5) == 150
    assert step_of(losses, 1.4) is None


@pytest.mark.netns
def test_frames_come_some_time_after_they_were_sent(tmp_path: Path) -> None:
    if why := missing(NEEDED):
        pytest.skip(why)
    with ExitStack() as opened:
        found = addresses(["first", "second"])
        hosts = {name: opened.enter_context(closing(Namespace())) for name in found}
        networks = [each.network for each in hosts.values()]
        opened.enter_context(closing(DelayedSwitch(networks, DELAY, 1e6)))
        for name, host in hosts.items():
            set_up(host, found[name], "8mbit")
        log = opened.enter_context((tmp_path / "log").open("wb"))
        answering = ANSWERS.format(found["second"])
        server = hosts["second"].start(sys.executable, "-c", answering, output=log)
        opened.callback(server.wait)
        opened.callback(server.kill)
        deadline = time.monotonic() + 60
        while ":2222" not in hosts["second"].enter("ss", "-ltn"):
            assert time.monotonic() < deadline
        took = hosts["first"].enter(sys.executable, "-c", ASKS.format(found["second"]))
    # There and back to connect, and once for the answer.
    assert 3 * DELAY <= float(took) < 30 * DELAY
