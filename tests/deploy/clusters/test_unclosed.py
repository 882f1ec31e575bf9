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
    host, _, port = cluster.cluster_resolver.cluster_spec().task_address("ps", 0).rpartition(":")
"""

SERVER = """
    import stratagem

    host, _, port = stratagem.Server.create_local_server().target.rpartition("/")[2].partition(":")
"""

FORKED = """
    import multiprocessing
    import socket

    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join({patience})
    assert child.exitcode == 0

    with socket.create_connection((host, int(port)), {patience}):
        print("127.0.0.1 serves")
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CLUSTER.format(processes=False), id="threads", marks=pytest.mark.long),
        pytest.param(CLUSTER.format(processes=True), id="processes"),
        pytest.param(SERVER, id="server", marks=pytest.mark.long),
    ],
)
def test_servers_that_nobody_closed_end_with_the_program_and_not_with_its_forked_child(
    program: str,
) -> None:
    """And without a word. From Python 3.12 on, to fork beside threads is warned of."""
    program = dedent(program) + dedent(FORKED).format(patience=PATIENCE)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "127.0.0.1 serves\n", "")
