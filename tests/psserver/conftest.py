"""Fixtures for tests of a running server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import LARGE, RawClient


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    """A session on a server that hosts "dense.weight" and "big"."""
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(**{"dense.weight": torch.ones(2, 3), "big": torch.ones(LARGE)})
        yield client
