"""Training steps with one thing more, beside the same steps without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.contest import Contest, Contestant, Question

_WITH, _WITHOUT = "with", "without"


@dataclass(frozen=True)
class Model:
    """A stack of linear layers.

    Attributes:
        layers: How many.
        width: Inputs and outputs of each.
        batch: Rows that go through them in a step.
    """

    layers: int
    width: int
    batch: int


@dataclass(frozen=True)
class Comparison:
    """Steps of one model with and without something.

    Attributes:
        what: What it is.
        model: The model.
        optimizer: What it is to the optimizer.
        consistency: Of the strategy.
    """

    what: str
    model: Model
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    consistency: str = "async"


# Backward takes long beside what is sent, and is short beside a round trip.
LONG, SHORT = Model(8, 1024, 512), Model(2, 16, 4)

COMPARISONS = (
    Comparison("overlap=True", LONG, {"overlap": True}),
    Comparison("clip_norm=1, sync", SHORT, {"clip_norm": 1.0}, "sync"),
    Comparison("clip_norm=1, sync", LONG, {"clip_norm": 1.0}, "sync"),
)


def steps(
    comparisons: Sequence[Comparison] = COMPARISONS, seconds: float = 0.4
) -> Sequence[Contest]:
    """A contest for each comparison: with it, and without."""
    return [_contest(comparison, seconds) for comparison in comparisons]


def _contest(comparison: Comparison, seconds: float) -> Contest:
    model = comparison.model
    described = f"{model.layers} layers of {model.width}, batch of {model.batch}"
    question = Question(f"{comparison.what}, {described}", "step", {_WITH, _WITHOUT}, seconds)
    contestants = [
        _contestant(comparison, _WITH, comparison.optimizer),
        _contestant(comparison, _WITHOUT, {}),
    ]
    return Contest("steps", contestants, [question])


def _contestant(comparison: Comparison, name: str, optimizer: Mapping[str, Any]) -> Contestant:
    settings = {
        **asdict(comparison.model),
        "consistency": comparison.consistency,
        "optimizer": optimizer,
    }
    return Contestant(name, "stratagem.steps", [json.dumps(settings)])
