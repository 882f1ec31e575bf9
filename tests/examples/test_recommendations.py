"""Recommendations that a web service answers from a model that is trained meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'stratagem[examples]'")

import httpx

from tests.deploy.processes.process_tree import python
from tests.psserver.replication.arbiters.etcd import free_port
from tests.waiting import eventually

SCRIPT = Path(__file__).parents[2] / "examples/recommendations.py"


@contextmanager
def answers() -> Iterator[httpx.Client]:
    """A client of the service, while the model is trained for a long time."""
    port = free_port()
    with (
        python(
            *("-m", "stratagem_deploy.cli", "run", "--ps", "2", "--workers", "2"),
            *(str(SCRIPT), "--port", str(port), "--epochs", "1000"),
            output=subprocess.DEVNULL,
        ),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client,
    ):
        yield client


@pytest.mark.cluster
@pytest.mark.timeout(300)  # most of it is the start of six processes
def test_answers_are_of_versions_that_were_published_just_now() -> None:
    with answers() as client:

        def answer() -> Any:
            return client.get("/recommendations/7", params={"count": 3}).json()

        def is_there() -> bool:
            try:
                return bool(answer())
            except httpx.TransportError:
                return False

        eventually(is_there, seconds=150)
        first = answer()["version"]
        eventually(lambda: answer()["version"] > first and answer()["age_seconds"] < 1, seconds=60)
        films = answer()["films"]
        assert len({film["id"] for film in films}) == 3
        assert films == sorted(films, key=lambda film: -film["rating"])
        assert client.get("/recommendations/944").status_code == 404
        assert "Recommendations" in client.get("/").text
