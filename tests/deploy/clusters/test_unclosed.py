"""Programs that end without having closed their servers."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

PATIENCE = 60

CLUSTER = """
    from stratagem_deploy import LocalCluster

    cluster = LocalCluster(ps=1, processes={processes}).start()
    print(cluster.cluster_resolver.cluster_spec())
"""

SERVER = """
    import stratagem

    print(stratagem.Server.create_local_server().target)
"""


@pytest.mark.parametrize(
    "program", [CLUSTER.format(processes=False), CLUSTER.format(processes=True), SERVER]
)
def test_servers_that_nobody_closed_end_with_the_program_without_a_word(program: str) -> None:
    command = [sys.executable, "-c", dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "localhost" in ended.stdout or "127.0.0.1" in ended.stdout
