"""Fixtures for tests of arbiters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.psserver.replication.arbiters import etcd as etcd_process
from tests.psserver.replication.arbiters.etcd import Etcd
from tests.psserver.replication.arbiters.places import Folder, Keys, Kubernetes, Place


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_process.running(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["file", "kubernetes", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each place that there is."""
    match request.param:
        case "file":
            return Folder(tmp_path / "arbiter")
        case "kubernetes":
            return Kubernetes(request.getfixturevalue("leases"))
        case _:
            return Keys(request.getfixturevalue("etcd"), tmp_path.name)
