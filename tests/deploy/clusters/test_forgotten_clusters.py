"""Programs that end without having closed their cluster."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

PATIENCE = 60

PROGRAM = """
    from stratagem_deploy import LocalCluster

    cluster = LocalCluster(ps=1, processes={processes}).start()
    print(cluster)
"""


@pytest.mark.parametrize("processes", [False, True])
def test_a_cluster_that_nobody_closed_ends_with_the_program(processes: bool) -> None:
    program = [sys.executable, "-c", dedent(PROGRAM).format(processes=processes)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 ps" in ended.stdout
