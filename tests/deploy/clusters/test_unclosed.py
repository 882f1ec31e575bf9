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


FORKED = """
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join({patience})
    assert child.exitcode == 0

    with socket.create_connection((host, int(port)), {patience}):
        print("127.0.0.1 serves")
"""

FORKING = """
    import socket

    from stratagem_deploy import LocalCluster

    cluster = LocalCluster(ps=1, processes={processes}).start()
    host, _, port = cluster.cluster_resolver.cluster_spec().task_address("ps", 0).rpartition(":")
"""

FORKING_SERVER = """
    import socket

    import stratagem

    host, _, port = stratagem.Server.create_local_server().target.rpartition("/")[2].partition(":")
"""


@pytest.mark.parametrize(
    "program", [CLUSTER.format(processes=False), CLUSTER.format(processes=True), SERVER]
)
def test_servers_that_nobody_closed_end_with_the_program_without_a_word(program: str) -> None:
    command = [sys.executable, "-c", dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "localhost" in ended.stdout or "127.0.0.1" in ended.stdout


@pytest.mark.parametrize(
    "program", [FORKING.format(processes=False), FORKING.format(processes=True), FORKING_SERVER]
)
def test_the_end_of_a_forked_child_ends_no_server(program: str) -> None:
    command = [sys.executable, "-c", dedent(program) + dedent(FORKED).format(patience=PATIENCE)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "127.0.0.1 serves\n"), ended.stderr
