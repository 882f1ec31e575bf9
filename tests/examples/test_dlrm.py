"""The click model: its log, and the whole program on many processes, shortened."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

from examples.clicks.log import MEASUREMENTS, ROWS, ClickLog
from stratagem_deploy.checkpoints.inspection import contents
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.deploy.processes.process_tree import python

COUNT = 20_000
SCRIPT = Path(__file__).parents[2] / "examples/dlrm.py"


def test_an_example_is_the_same_in_any_batch_and_another_in_another_log() -> None:
    whole = ClickLog().batch(2**40, 100)
    parts = list(ClickLog().batches(2**40, 100, 30))
    assert [len(part.clicked) for part in parts] == [30, 30, 30, 10]
    assert torch.equal(torch.cat([part.dense for part in parts]), whole.dense)
    assert torch.equal(torch.cat([part.ids for part in parts], 1), whole.ids)
    assert torch.equal(torch.cat([part.clicked for part in parts]), whole.clicked)
    assert not torch.equal(ClickLog(seed=1).batch(2**40, 100).ids, whole.ids)


def test_the_log_is_what_it_says() -> None:
    batch = ClickLog().batch(0, COUNT)
    assert batch.dense.shape == (COUNT, MEASUREMENTS)
    torch.testing.assert_close(batch.dense.std(0), torch.ones(13), atol=0.03, rtol=0)
    for ids, rows in zip(batch.ids, ROWS, strict=True):
        assert 0 <= ids.min() <= ids.max() < rows
        counts = ids.unique(return_counts=True)[1].sort(descending=True)[0]
        assert 1.6 < counts[0] / counts[1] < 2.2
        assert counts[0] < COUNT / 4 and len(counts) > 2000
    assert (batch.clicked.mean() - batch.chance.mean()).abs() < 0.01
    assert 0.8 < roc_auc_score(batch.clicked, batch.chance) < 0.9


@pytest.mark.long
@pytest.mark.timeout(300)  # most of it is the start of six processes
def test_it_learns_with_tables_on_servers_and_its_checkpoint_fits_others(
    tmp_path: Path,
) -> None:
    with python(
        *("-m", "stratagem_deploy.cli", "run", "--ps", "3", "--workers", "2"),
        *(str(SCRIPT), "--small", "--folder", str(tmp_path / "kept")),
        output=subprocess.PIPE,
    ) as run:
        output, errors = run.communicate()
    assert run.returncode == 0, errors
    figures = {
        row[1].strip(): row[2].strip()
        for line in output.splitlines()
        if len(row := line.split("│")) == 4
    }
    assert figures["tables"] == "38,544,188 rows, 2,467 MB"
    assert float(figures["memory grew by"].split()[0]) < 124
    assert float(figures["AUC, test"].split(";")[0]) > 0.6
    assert "is the same on 2 servers and on 5" in output
    kept = contents(open_checkpoint(tmp_path / "kept"))["variables"]
    tables = [one for one in kept if one["rows"] is not None]
    assert len(tables) == 2 * len(ROWS)  # with the sums of Adagrad
    assert all(one["rows"] > 100 for one in tables)
    # Of the 60 steps of both workers some are in it and some are not.
    assert all(15 <= one["version"] < 60 for one in tables if one["kind"] == "model")
