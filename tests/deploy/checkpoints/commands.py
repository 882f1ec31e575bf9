"""Calls of stratagem checkpoint, and what they answer."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from stratagem_deploy.cli import app


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def answer(*arguments: object, code: int = 0) -> Any:
    return json.loads(call(*arguments, "--json", code=code))
