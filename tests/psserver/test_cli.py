"""Errors of a server's command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratagem_psserver.cli import app


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bind", "127.0.0.1"], "'127.0.0.1' is not an address"),
        (["--bind", "127.0.0.1:99999"], "a port from 0 to 65535"),
        (["--health-bind", "nonsense"], "'nonsense' is not an address"),
        (["--bind", "0.0.0.0:0"], "--insecure"),
        (["--bind", "0.0.0.0:0", "--insecure"], "--token-file"),
        (["--job", "two words"], "job name 'two words'"),
        (["--token-file", "no/such/file"], "check STRATAGEM_TOKEN_FILE, and --token"),
        (["--token-file", "empty"], "'empty' is empty; write a secret into it"),
        (["--replicas", "2"], "nobody to decide which of them serves; give all of them the same"),
        (
            ["--arbiter", "file:a", "--durability", "snapshot"],
            "cannot move with --durability snapshot",
        ),
        (["--tasks", "4", "--servers", "2"], "since its task stays where it is; give all of them"),
        (["--tasks", "4", "--arbiter", "file:a"], "cannot share 4 tasks with 0 servers, each of"),
        (["--tasks", "1", "--servers", "2", "--arbiter", "file:a"], "which may be fewer"),
        (["--replica", "1"], "--replica 1 is none of the 1 of /job:ps/task:0"),
        (
            ["--replicas", "2", "--arbiter", "file:a", "--durability", "snapshot"],
            "cannot have --durability snapshot",
        ),
        (["--durability-folder", "d"], "keeps nothing in the folder 'd' with --durability none"),
        (["--snapshot-seconds", "5"], "--snapshot-seconds 5 has no effect with --durability none"),
        (
            ["--durability", "log", "--durability-folder", "d", "--snapshot-seconds", "5"],
            "--snapshot-seconds 5 has no effect with --durability log",
        ),
        (["--ready-file", "no/such/folder"], "create its folder first"),
    ],
)
def test_what_it_cannot_serve_it_says_in_a_sentence(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRATAGEM_TOKEN_FILE", raising=False)
    (tmp_path / "empty").touch()
    finished = CliRunner().invoke(app, arguments)
    assert finished.exit_code == 2
    assert finished.output.startswith("parameter server: ")
    assert says in finished.output
    assert len(finished.output.splitlines()) == 1
