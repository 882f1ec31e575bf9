"""Coordinators that are killed in mid-pass, and others that go on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stratagem_deploy import LocalCluster
from tests.cluster import counting
from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.long

KILLED_AFTER = [7, 1, 5]  # functions


def environment(cluster: LocalCluster, folder: Path) -> Mapping[str, str]:
    """What tells a program that it is the chief of a cluster."""
    resolver = cluster.cluster_resolver
    token = folder / "token"
    token.touch(0o600)
    token.write_text(resolver.cluster_token or "")
    tasks = resolver.cluster_spec().as_dict()
    task = {"cluster": tasks, "task": {"type": "chief", "index": 0}}
    return {"TF_CONFIG": json.dumps(task), "STRATAGEM_TOKEN_FILE": str(token)}


def said(process: subprocess.Popen[str]) -> Iterator[Mapping[str, Any]]:
    """What the program writes, and nothing of what the library logs."""
    assert process.stdout
    return (json.loads(line) for line in process.stdout if line.startswith("{"))


def test_another_coordinator_finishes_the_pass_and_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    script = ["-m", counting.__name__]
    begun = []
    with LocalCluster(ps=2, worker_servers=2, processes=True) as cluster:
        run = environment(cluster, tmp_path)
        for functions in KILLED_AFTER:
            with python(*script, environment=run, output=subprocess.PIPE) as process:
                lines = said(process)
                begun.append(next(lines))
                while functions:
                    functions -= "ended" in next(lines)
                process.kill()
        with python(*script, environment=run, output=subprocess.PIPE) as process:
            last, *_, counted = said(process)
    batches = counting.ROWS // counting.BATCH
    begun.append(last)
    assert begun[0] == {"number": 0, "remaining": batches}
    assert all(one["remaining"] < batches for one in begun[1:])
    assert counted == {
        "rows": [counting.PASSES] * counting.ROWS,
        "functions": counting.PASSES * batches,
    }
