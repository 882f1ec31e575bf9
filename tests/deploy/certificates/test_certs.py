"""Calls of stratagem certs."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratagem_deploy.cli import app
from tests.certified import serial


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    call("init", "prod", "--authority", folder)
    return folder


def test_only_the_owner_reads_keys(authority: Path) -> None:
    call("issue", "ps:0", "--authority", authority)
    for key in (authority / "ca.key", authority / "ps-0" / "tls.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(authority.stat().st_mode) == 0o700


def test_each_task_gets_a_folder_that_says_what_it_is(authority: Path) -> None:
    tasks = ("ps:0", "worker:0=chief", "worker:1", "evaluator:0", "observer")
    made = call("issue", *tasks, "--authority", authority, "--days", 7).split()
    folders = [str(authority / name) for name in NAMES]
    assert made == folders
    listed = json.loads(call("show", *folders, "--json"))
    roles = [each["role"] for each in listed]
    assert roles == ["server", "chief", "worker", "evaluator", "observer"]
    assert [each["task"] for each in listed] == ["ps:0", "worker:0", "worker:1", "evaluator:0", ""]
    assert {each["cluster"] for each in listed} == {"prod"}
    assert all(6.9 < each["days_left"] <= 7 for each in listed)
    assert "worker:1" in call("show", *folders)


NAMES = ("ps-0", "worker-0", "worker-1", "evaluator-0", "observer")


def test_renewal_keeps_who_it_is_and_changes_the_key(authority: Path) -> None:
    call("issue", "worker:0=chief", "--authority", authority, "--days", 0.001)
    folder = authority / "worker-0"
    before, key = serial(folder), (folder / "tls.key").read_bytes()
    call("renew", folder, "--authority", authority)
    (shown,) = json.loads(call("show", folder, "--json"))
    assert (shown["role"], shown["task"], shown["days_left"] > 80) == ("chief", "worker:0", True)
    assert serial(folder) != before
    assert (folder / "tls.key").read_bytes() != key


def test_an_authority_is_not_replaced(authority: Path) -> None:
    key = (authority / "ca.key").read_bytes()
    assert "has an authority already" in call("init", "prod", "--authority", authority, code=2)
    assert (authority / "ca.key").read_bytes() == key


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("issue", "ps"), "'ps' is no task to certify; give JOB:N"),
        (("issue", "trainer:0"), "give trainer:0=ROLE with one of chief"),
        (("issue", "trainer:0=king"), "'king' is no role"),
        (("issue", "a.b:0=worker"), "cannot be the name of a job"),
        (("renew", "nowhere"), "nowhere/tls.crt cannot be read"),
        (("show", "nowhere"), "nowhere/tls.crt cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(
    authority: Path, arguments: tuple[str, ...], says: str
) -> None:
    given = () if arguments[0] == "show" else ("--authority", authority)
    assert says in call(*arguments, *given, code=2)
    assert sorted(path.name for path in authority.iterdir()) == ["ca.crt", "ca.key"]


def test_an_authority_that_is_not_there_or_of_another_cluster(
    authority: Path, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    assert "make one by `stratagem certs init`" in call(
        "issue", "ps:0", "--authority", nowhere, code=2
    )
    call("issue", "ps:0", "--authority", authority)
    other = tmp_path / "other"
    call("init", "test", "--authority", other)
    refused = call("renew", authority / "ps-0", "--authority", other, code=2)
    assert "is of the cluster 'prod'" in refused


def test_a_cluster_has_a_name_of_small_letters(tmp_path: Path) -> None:
    refused = call("init", "My Cluster", "--authority", tmp_path / "new", code=2)
    assert "'My Cluster' cannot be the name of a cluster" in refused
    assert not (tmp_path / "new").exists()
