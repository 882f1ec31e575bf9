"""What TensorFlow answered, and where Stratagem answers otherwise on purpose."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.differential.answer import Answer
from tests.tables import read_tables

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Deviation:
    """An answer that is not TensorFlow's.

    Attributes:
        row: The id of the decision behind it.
        answer: What Stratagem answers.
    """

    row: str
    answer: Answer


def _recorded() -> dict[str, Answer]:
    paths = sorted((HERE / "answers").glob("*.json"))
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {name: answer for answers in files for name, answer in answers.items()}


def _deviations() -> dict[str, Deviation]:
    tables = read_tables(HERE / "deviations.toml")
    return {
        name: Deviation(table["row"], json.loads(table["answer"])) for name, table in tables.items()
    }


RECORDED = _recorded()
DEVIATIONS = _deviations()
