"""A server to which strangers connect, who say nothing, or little."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
import torch

from stratagem_rpc.channel import MESSAGE_BYTES
from stratagem_rpc.serving import process
from stratagem_rpc.serving.entrance import STRANGERS
from tests.psserver.process import PATIENCE, ServerProcess, serving
from tests.psserver.wire import SERVICE, RawClient, sgd
from tests.strangers import greeted
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

FILES, CONNECTIONS = 400, 1000


def test_strangers_leave_files_to_the_server_and_are_gone_soon(tmp_path: Path) -> None:
    with (
        ExitStack() as opened,
        serving(tmp_path, files=FILES) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=torch.zeros(3))
        files = Path(f"/proc/{server.pid}/fd")
        before = len(os.listdir(files))
        host, port = server.address.split(":")
        for _ in range(CONNECTIONS):
            stranger = socket.create_connection((host, int(port)), PATIENCE)
            opened.enter_context(stranger)
        eventually(lambda: len(os.listdir(files)) > before + FILES // 4)
        assert len(os.listdir(files)) < FILES - FILES // 4
        client.assign("w", torch.ones(3))
        assert client.read("w")[0].tolist() == [1, 1, 1]
        # Those who had a place lose it, since they do not greet.
        eventually(lambda: len(os.listdir(files)) < before + FILES // 8)
        with RawClient(server.address, "") as newcomer:
            newcomer.open()
            assert newcomer.read("w")[0].tolist() == [1, 1, 1]


# More than a server takes.
GREETED, CALLS, MOST_BYTES = 2_500, 300, 64 << 20


def memory_of(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def files_of(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def step_seconds(client: RawClient, number: int = 40) -> float:
    """How long a worker's step takes: a push, and a read of what has come of it."""
    seconds = []
    for _ in range(number):
        began = time.perf_counter()
        client.update(sgd(), {"w": torch.ones(1_000)})
        client.read("w")
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def test_strangers_who_greet_take_little_and_slow_nobody_down(tmp_path: Path) -> None:
    process.raise_limit()
    with (
        ExitStack() as opened,
        serving(tmp_path) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=torch.zeros(1_000))
        before, seconds = memory_of(server), step_seconds(client)
        files = files_of(server)
        strangers = [opened.enter_context(greeted(server.address)) for _ in range(GREETED)]
        for _ in range(CALLS):
            strangers[0].begin(f"/{SERVICE}/Assign")
        # The machine may have had something else to do.
        eventually(lambda: step_seconds(client) < 2 * seconds)
        assert memory_of(server) - before < MOST_BYTES
        assert files_of(server) <= files + process.MOST_CONNECTIONS
        value = client.read("w")[0]
    assert value.equal(torch.full((1_000,), -float(client.sequence - 1)))


# Each takes 35 MiB while it is not whole. Those of `STRANGERS` may stay.
UPLOADS, UPLOAD_BYTES = 16, 35 << 20


def test_strangers_who_send_large_messages_take_the_memory_of_a_few(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        RawClient(server.address, "") as client,
        greeted(server.address) as stranger,
    ):
        client.open()
        client.create(w=torch.zeros(3))
        before = memory_of(server)
        for _ in range(UPLOADS):
            stranger.send(stranger.begin(f"/{SERVICE}/Assign", MESSAGE_BYTES), UPLOAD_BYTES)
        # Of 560 MiB that were sent. How much it has read of those that it refuses is up to gRPC.
        kept = STRANGERS.most * MESSAGE_BYTES + 2 * MOST_BYTES
        assert kept < UPLOADS * UPLOAD_BYTES
        eventually(lambda: memory_of(server) - before < kept)
        client.assign("w", torch.ones(3))
        assert client.read("w")[0].tolist() == [1, 1, 1]
