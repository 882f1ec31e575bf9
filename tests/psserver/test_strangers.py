"""A server to which strangers connect, who say nothing."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.psserver.process import PATIENCE, serving
from tests.psserver.wire import RawClient
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

FILES, STRANGERS = 400, 1000


def test_strangers_leave_files_to_the_server_and_are_gone_soon(tmp_path: Path) -> None:
    with (
        ExitStack() as opened,
        serving(tmp_path, files=FILES) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=torch.zeros(3))
        files = Path(f"/proc/{server.popen.pid}/fd")
        before = len(os.listdir(files))
        host, port = server.address.split(":")
        for _ in range(STRANGERS):
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
