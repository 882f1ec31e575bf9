"""Ask TensorFlow for the answers to scenarios: `make answers`.

Each scenario has a process of its own, forked before TensorFlow has started: after one
collective of it fails, or two strategies disagree about one, all later ones fail.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tests.differential.answer import Answer
from tests.differential.libraries.tensorflow import TensorFlow, set_logical_cpus
from tests.differential.scenario import Scenario, scenarios

ANSWERS = Path(__file__).parent / "answers"

SECONDS = 300  # for one scenario; some make TensorFlow wait for ever


def main() -> None:
    """Record the answers of one prefix or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", help="record only these, for instance RED")
    only = parser.parse_args().prefix
    for prefix, group in groupby(scenarios(), lambda each: each.prefix):
        if only in (None, prefix):
            _record(prefix, list(group))


def _record(prefix: str, group: list[Scenario]) -> None:
    names = [each.name for each in group]
    answers = dict(zip(names, _answers(names), strict=True))
    path = ANSWERS / f"{prefix.lower()}.json"
    path.write_text(_lines(answers), encoding="utf-8")
    print(f"{path.name}: {len(answers)} answers")


def _answers(names: Iterable[str]) -> list[Answer]:
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        asked = [pool.apply_async(_answer, (name,)) for name in names]
        return [each.get(SECONDS) for each in asked]


def _answer(name: str) -> Answer:
    set_logical_cpus()
    (scenario,) = (each for each in scenarios() if each.name == name)
    return scenario.answer(TensorFlow())


def _lines(answers: dict[str, Answer]) -> str:
    """Return JSON with a line for each answer."""
    pairs = (
        f" {json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}"
        for name, answer in answers.items()
    )
    return "{\n" + ",\n".join(pairs) + "\n}\n"


if __name__ == "__main__":
    main()
