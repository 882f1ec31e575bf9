"""The lines that a page shows of a program, and the program with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/guide/frameworks.md")
_SECTION = re.compile(
    r"^#+ [^\n]*\n(?:(?!^#).)*?\((?:\.\./)+benchmarks/programs/scripts/(\w+)\.py\)"
    r"(?:(?!^#).)*?^```diff\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Difference:
    """What changes in a program.

    Attributes:
        lines: Each after a space if it stays, "+" if it is added or "-" if it is left out. A line
            "@@" stands for any number of lines that stay.
    """

    lines: Sequence[str]

    @property
    def size(self) -> int:
        """How many lines are added or changed."""
        return sum(line.startswith("+") for line in self.lines)

    def applied(self, program: str) -> str:
        """Return the program with these lines.

        Raises:
            ValueError: It does not have the lines that the difference begins with, or has them
                twice.
        """
        for hunk in "\n".join(self.lines).split("\n@@\n"):
            before = _text(hunk, " -")
            if program.count(before) != 1:
                raise ValueError(
                    f"the program has not once, but {program.count(before)} times:\n{before}"
                )
            program = program.replace(before, _text(hunk, " +"))
        return program


def _text(hunk: str, kinds: str) -> str:
    return "".join(f"{line[1:]}\n" for line in hunk.splitlines() if (line or " ")[0] in kinds)


def differences() -> Mapping[str, Difference]:
    """Return what the page shows, by the names of the programs."""
    page = PAGE.read_text(encoding="utf-8")
    return {name: Difference(lines.splitlines()) for name, lines in _SECTION.findall(page)}
