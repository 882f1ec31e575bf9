"""Small programs whose answers do not depend on the library that runs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.differential.answer import Answer, answer_of
from tests.differential.library import Library

FOLDER = Path(__file__).parent / "scenarios"


@dataclass(frozen=True)
class Scenario:
    """A program, and what it stands for.

    Attributes:
        name: `PREFIX/function`; also the key of its answer.
        program: Called with the library; returns a nest of values, or raises.
        rows: The ids of the rows that it shows.
        core: The numbers of the core selection that it stands for.
        says: Fragments that the message contains if the program raises.
    """

    name: str
    program: Callable[[Library], Any]
    rows: tuple[str, ...]
    core: tuple[int, ...]
    says: tuple[str, ...]

    @property
    def prefix(self) -> str:
        return self.name.partition("/")[0]

    def answer(self, library: Library) -> Answer:
        """Run the program on a library."""
        return answer_of(lambda: self.program(library), library, self.says)


Program = TypeVar("Program", bound=Callable[[Library], Any])

_SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *rows: str,
    core: tuple[int, ...] = (),
    says: tuple[str, ...] = (),
) -> Callable[[Program], Program]:
    """Register a program as a scenario of the file that it stands in."""

    def register(program: Program) -> Program:
        prefix = program.__module__.rpartition(".")[2].partition("_")[0].upper()
        name = f"{prefix}/{program.__name__}"
        if name in _SCENARIOS:
            raise ValueError(f"two scenarios are named {name}")
        _SCENARIOS[name] = Scenario(name, program, rows, core, says)
        return program

    return register


def scenarios() -> list[Scenario]:
    """Return all scenarios, by name."""
    for path in sorted(FOLDER.glob("*.py")):
        importlib.import_module(f"tests.differential.scenarios.{path.stem}")
    return [_SCENARIOS[name] for name in sorted(_SCENARIOS)]
