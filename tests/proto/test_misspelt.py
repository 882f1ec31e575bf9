"""Variables whose names nothing reads."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from stratagem_deploy.running.run import RunOptions
from stratagem_proto.configuration.model import _OTHERS, ProcessSettings, misspelt, variable
from stratagem_psserver.cli import ServerOptions
from stratagem_worker.cli import WorkerOptions
from tests.full import a_few

KINDS: list[type[ProcessSettings]] = [ServerOptions, WorkerOptions, RunOptions]
ROOT = Path(__file__).parents[2]
PREFIX = "STRATAGEM_"


def names_of(kind: type[ProcessSettings]) -> set[str]:
    return {*map(variable, kind.model_fields)}


def found(kind: type[ProcessSettings], *names: str) -> list[tuple[str, str]]:
    return [*misspelt(dict.fromkeys(names, "x"), PREFIX, names_of(kind))]


@a_few(
    "name,meant",
    [
        ("STRATAGEM_TOKENFILE", "STRATAGEM_TOKEN_FILE"),
        ("STRATAGEM_DURABLITY", "STRATAGEM_DURABILITY"),
        ("STRATAGEM_STAGED_BYTE", "STRATAGEM_STAGED_BYTES"),
    ],
    "one spelling stands for the others",
)
def test_what_was_meant_is_told(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "x")
    with caplog.at_level(logging.WARNING, "stratagem"):
        ServerOptions.read({})
    assert f"the variable {name} is ignored; did you mean {meant}?" in caplog.messages


@pytest.mark.parametrize("kind", KINDS)
def test_variables_of_other_commands_and_of_kubernetes_are_not_meant(
    kind: type[ProcessSettings],
) -> None:
    others = {name for each in KINDS for name in names_of(each)}
    services = ("PS_SERVICE_HOST", "PORT_2222_TCP", "PS_PORT", "WORKER_SERVICE_PORT")
    assert found(kind, *others, *(PREFIX + name for name in services)) == []


def test_every_variable_that_the_sources_read_is_known() -> None:
    packages = ("proto", "rpc", "storage", "psserver", "reader", "client", "worker", "deploy")
    sources = [path for each in packages for path in (ROOT / each).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    read = {*re.findall(r'"(STRATAGEM_[A-Z_]+[A-Z])"', text)}
    # One that is known is not taken for another, with a letter less.
    known = {name for kind in KINDS for name in names_of(kind)} | {*_OTHERS}
    assert len(read) > 5 and read <= known
