"""Fixtures for tests of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.replication.arbiters import lease_server
from tests.psserver.replication.arbiters.lease_server import LeaseServer
from tests.psserver.wire import LARGE, RawClient


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    """A session on a server that hosts "dense.weight" and "big"."""
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(**{"dense.weight": torch.ones(2, 3), "big": torch.ones(LARGE)})
        yield client


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseServer]:
    """An API server that `kubectl` would use."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    configuration = tmp_path / "kubeconfig"
    # KUBECONFIG is read when the library is imported.
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(configuration)
    )
    with lease_server.serving() as server:
        configuration.write_text(lease_server.kubeconfig(server))
        yield server
