"""Answers are compared as closely as two libraries allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stratagem
from tests.differential.answer import Answer, answer_of
from tests.differential.comparison import difference
from tests.differential.libraries.stratagem import Stratagem


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1.0, 1.0 + 1e-7),
        (float("nan"), float("nan")),
        ({"tensor": "int32", "values": [1]}, {"tensor": "int64", "values": [1]}),
        (
            {"error": ["AssertionError"], "says": {}},
            {"error": ["InvalidArgumentError", "ValueError"], "says": {}},
        ),
        (
            {"error": ["ValueError"], "says": {"a": True, "b": False}},
            {"error": ["ValueError"], "says": {"a": True, "b": False}},
        ),
    ],
)
def test_answers_that_are_the_same(expected: Answer, actual: Answer) -> None:
    assert difference(expected, actual) is None


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1.0, 1.01),
        (1, 1.0),
        (True, 1),
        ([1], [1, 2]),
        ([1], {"tuple": [1]}),
        ({"tuple": [1]}, {"tuple": [2]}),
        ({"tensor": "float64", "values": 1.5}, {"tensor": "float32", "values": 1.5}),
        ({"error": ["ValueError"], "says": {}}, {"error": ["TypeError"], "says": {}}),
        ({"error": ["ValueError"], "says": {}}, None),
        (
            {"error": ["ValueError"], "says": {"a": True}},
            {"error": ["ValueError"], "says": {"a": False}},
        ),
    ],
)
def test_answers_that_differ(expected: Answer, actual: Answer) -> None:
    assert difference(expected, actual) is not None


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (stratagem.PerReplica([1, "a"]), {"PerReplica": [1, "a"]}),
        (stratagem.ReduceOp.SUM, {"enum": "SUM"}),
        (torch.zeros(0, 2), {"tensor": "float32", "values": [], "shape": [0, 2]}),
        ((1, [None]), {"tuple": [1, [None]]}),
        ({"b": 2.5}, {"dict": {"b": 2.5}}),
        (
            stratagem.RunOptions(),
            {"RunOptions": {"dict": stratagem.RunOptions()._asdict()}},
        ),
        (
            stratagem.IndexedSlices(torch.ones(1), torch.tensor([2])),
            {
                "IndexedSlices": [
                    {"tensor": "float32", "values": [1.0]},
                    {"tensor": "int64", "values": [2]},
                ]
            },
        ),
    ],
)
def test_values_become_json(value: Any, answer: Answer, tmp_path: Path) -> None:
    assert answer_of(lambda: value, Stratagem(tmp_path)) == answer


def test_an_error_is_an_answer(tmp_path: Path) -> None:
    def program() -> None:
        raise KeyError("a reason")

    assert answer_of(program, Stratagem(tmp_path), ("reason", "excuse")) == {
        "error": ["KeyError", "LookupError"],
        "says": {"reason": True, "excuse": False},
    }
