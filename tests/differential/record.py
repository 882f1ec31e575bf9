"""Ask TensorFlow for the answers to scenarios: `make answers`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from tests.differential.answer import Answer
from tests.differential.libraries.tensorflow import (
    TensorFlow,
    collectives_work,
    set_logical_cpus,
)
from tests.differential.scenario import Scenario, scenarios

ANSWERS = Path(__file__).parent / "answers"

SECONDS_ALONE = 120


def main() -> None:
    """Record the answers of one prefix or of all; print that of one scenario."""
    arguments = _arguments()
    set_logical_cpus()
    library = TensorFlow()
    if arguments.scenario:
        chosen = [s for s in scenarios() if s.name == arguments.scenario]
        print(json.dumps(chosen[0].answer(library)))
        return
    for prefix, group in groupby(scenarios(), lambda each: each.prefix):
        if arguments.prefix in (None, prefix):
            _record(prefix, list(group), library)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", help="record only these, for instance RED")
    parser.add_argument("--scenario", help="print the answer of one, by its name")
    return parser.parse_args()


def _record(prefix: str, group: list[Scenario], library: TensorFlow) -> None:
    answers = {each.name: _answer(each, library) for each in group}
    path = ANSWERS / f"{prefix.lower()}.json"
    path.write_text(_lines(answers), encoding="utf-8")
    print(f"{path.name}: {len(answers)} answers")


def _lines(answers: dict[str, Answer]) -> str:
    """Return JSON with a line for each answer."""
    pairs = (
        f" {json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}"
        for name, answer in answers.items()
    )
    return "{\n" + ",\n".join(pairs) + "\n}\n"


def _answer(scenario: Scenario, library: TensorFlow) -> Answer:
    if not scenario.alone:
        answer = scenario.answer(library)
        if not collectives_work():
            raise SystemExit(f"{scenario.name} breaks collectives: set alone=True")
        return answer
    command = [sys.executable, "-m", __spec__.name, "--scenario", scenario.name]
    finished = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=SECONDS_ALONE
    )
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
