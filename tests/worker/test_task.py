"""A worker server in a program: `stratagem.Server`."""

from __future__ import annotations

import pytest

import stratagem
from tests.conftest import TOKEN
from tests.worker.links import connected, result

CLUSTER = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:0", "127.0.0.1:0"]}


@pytest.mark.spec("SRV-1")
def test_a_server_of_the_worker_job_runs_functions() -> None:
    server = stratagem.Server(CLUSTER, "worker", 1, token=TOKEN)
    address = server.target.removeprefix("grpc://")
    with connected(address, task=1) as link:
        assert result(link, 1, lambda: 6 * 7) == 42
    server.stop()


def test_it_takes_a_token() -> None:
    with pytest.raises(
        stratagem.InvalidArgumentError,
        match=r"no cluster token.* pass the secret itself as token=",
    ):
        stratagem.Server(CLUSTER, "worker", 0, token="")
