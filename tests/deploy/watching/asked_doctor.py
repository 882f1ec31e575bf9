"""What `stratagem doctor` says of real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

from stratagem_deploy.cli import app
from tests.waiting import eventually

Finding = dict[str, Any]


class AskedDoctor:
    """Asks servers, with a secret from a file.

    Args:
        token_file: The file.
    """

    def __init__(self, token_file: str) -> None:
        self._environment = {"STRATAGEM_TOKEN_FILE": token_file, "TF_CONFIG": "{}"}

    def findings(self, *arguments: str) -> list[Finding]:
        """What the doctor finds."""
        return json.loads(self.output("doctor", "--json", *arguments))["findings"]  # type: ignore[no-any-return]

    def output(self, *arguments: str) -> str:
        """What a command says, where nothing is cut since it is no terminal."""
        return CliRunner().invoke(app, arguments, env=self._environment).stdout

    def until(self, is_it: Callable[[Finding], bool], *arguments: str) -> Finding:
        """Asks until there is such a finding, and returns it."""
        found: list[Finding] = []

        def is_told() -> bool:
            found[:] = filter(is_it, self.findings(*arguments))
            return bool(found)

        eventually(is_told)
        return found[0]
