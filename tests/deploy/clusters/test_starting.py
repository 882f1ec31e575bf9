"""What clusters refuse before they start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratagem import FailedPreconditionError, InvalidArgumentError
from stratagem_deploy import LocalCluster
from stratagem_deploy.clusters.plan import Storage
from stratagem_psserver.settings import Durability


@pytest.mark.parametrize("durability", ["log", "snapshot"])
def test_a_durability_without_a_folder_says_how_to_name_one(durability: Durability) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"'{durability}' needs a folder.*--durability-f"
    ):
        Storage.at(None, durability)


def test_a_folder_without_a_durability_says_how_to_choose_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{tmp_path}' without.* by --durability or"):
        Storage.at(None, durability_folder=tmp_path)


@pytest.mark.parametrize("jobs", [{"worker": ["a:1", "b:1"]}, {"worker": ["a:1"], "ps": ["c:1"]}])
def test_a_worker_of_a_cluster_starts_no_other_one(
    jobs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    with pytest.raises(FailedPreconditionError, match=r"/job:worker/task:0 of another one.*`pyth"):
        LocalCluster(ps=1)


def test_others_start_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    chief = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    for config in ({}, chief):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        LocalCluster(ps=1)
