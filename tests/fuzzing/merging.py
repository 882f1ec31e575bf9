"""`python -m tests.fuzzing.merging TARGET FOLDER`: keeps inputs where everybody has them.

Of the inputs in a folder, those come into `tests/fuzzing/corpora/TARGET` that run code of the
decoder which none there runs, the smallest ones that do.
"""

from __future__ import annotations

import sys

import atheris

from tests.fuzzing.corpora import CORPORA
from tests.fuzzing.instrumented import instrumented

_PROGRAM = f"{sys.executable} -m tests.fuzzing.merging"


def main(target: str, *arguments: str) -> None:
    """Merge a folder into a corpus; libFuzzer starts this again with arguments of its own."""
    targets = instrumented("catalogue").TARGETS
    kept = CORPORA / target
    kept.mkdir(parents=True, exist_ok=True)
    if len(arguments) == 1:
        arguments = ("-merge=1", str(kept), *arguments)
    atheris.Setup([f"{_PROGRAM} {target}", *arguments], targets[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
