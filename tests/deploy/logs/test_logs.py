"""Calls of stratagem log."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from tests.psserver.persistence.servers import client_of, end_of, killed, logged, segments


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["log", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that was killed."""
    path = tmp_path_factory.mktemp("logs") / "state"
    path.mkdir()
    with logged(path) as server, client_of(server) as client:
        client.create(w=torch.zeros(5))
        client.assign("w", torch.ones(5))
        return killed(path) / "ps-0"


def test_verify_finds_an_end_that_is_missing(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "ps-0"))
    (path,) = segments(copy.parent)
    os.truncate(path, end_of(path) - 1)
    result = CliRunner().invoke(app, ["log", "verify", str(copy)])
    assert result.exit_code == 1
    assert "ends with record 2" in result.output
    assert "but record 3 was on disk" in result.output


def test_inspect_counts_what_is_there(folder: Path) -> None:
    listed = json.loads(call("inspect", folder, "--json"))
    kinds = {each["kind"]: each["count"] for each in listed["records"]}
    assert kinds == {"session opened": 1, "CreateVariables": 1, "Assign": 1}
    assert (listed["task"], listed["first"], listed["last"]) == ("/job:ps/task:0", 1, 3)
    assert listed["torch"] == torch.__version__
    shown = call("inspect", folder)
    assert "/job:ps/task:0, records 1 to 3, in 1 segments" in shown


def test_tail_prints_a_line_for_each_of_the_last_records(folder: Path) -> None:
    lines = call("tail", folder, "-n", 2).splitlines()
    assert [line.split()[0] for line in lines] == ["2", "3"]
    assert lines[1].endswith("Assign, 20 bytes of tensors")


def test_verify_says_what_is_intact_and_what_is_damaged(folder: Path, tmp_path: Path) -> None:
    assert "3 records are intact, up to record 3" in call("verify", folder)
    (path,) = segments(folder.parent)
    data = bytearray(path.read_bytes()[: end_of(path)])
    torn = tmp_path / path.name
    torn.write_bytes(data[:-1])
    assert "2 records are intact" in call("verify", tmp_path)
    assert "were not written in full" in call("inspect", tmp_path)
    behind = json.loads(call("inspect", tmp_path, "--json"))["bytes_behind"]
    assert behind == len(data) - 1 - end_of(torn)
    data[len(data) // 3] ^= 1
    torn.write_bytes(data)
    assert "the log is damaged" in call("verify", tmp_path, code=1)


def test_a_folder_without_a_log_is_told(tmp_path: Path) -> None:
    assert "there is no log" in call("verify", tmp_path, code=2)
    assert "there is no log" in call("inspect", tmp_path / "none", code=2)
