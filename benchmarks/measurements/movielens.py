"""Training on MovieLens at batch 1024 with one worker and one server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign

_OURS: Mapping[str, Mapping[str, Any]] = {
    "Stratagem": {},
    "Stratagem, one in flight": {"pushes_in_flight": 1},
}


def movielens(seconds: float = 0.4) -> Contest:
    """A step: what takes the values, forward, backward, and pushes."""
    file = ratings_file()
    contestants = [
        *(
            Contestant(name, "stratagem.movielens", [file, json.dumps(settings)])
            for name, settings in _OURS.items()
        ),
        Contestant("TensorFlow", "tensorflow.movielens", [file], peer=Foreign.TENSORFLOW),
        Contestant("bare server", "limits.bare_server", [file]),
        Contestant("local loop", "limits.movielens", [file]),
    ]
    names = {each.name for each in contestants}
    return Contest("movielens", contestants, [Question("step", "step", names, seconds)])


def ratings_file() -> str:
    """Where the ratings are.

    Raises:
        FileNotFoundError: recbole, which brings them, is not installed.
    """
    recbole = find_spec("recbole")
    if recbole is None or not recbole.submodule_search_locations:
        raise FileNotFoundError("MovieLens is missing: pip install --no-deps recbole==1.2.1")
    folder = Path(recbole.submodule_search_locations[0])
    return str(folder / "dataset_example/ml-100k/ml-100k.inter")
