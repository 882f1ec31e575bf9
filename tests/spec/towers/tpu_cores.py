"""Strategies of TensorFlow 1.12 for accelerators, on those of this process."""

from __future__ import annotations

from typing import Any

from stratagem import VariableAggregation, contrib
from stratagem.cluster_resolver import TPUClusterResolver

HOST = "/replica:0/task:0/device:CPU:0"
SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST = VariableAggregation.ONLY_FIRST_TOWER


def on_cores(num_cores: int | None = 2) -> contrib.TPUStrategy:
    return contrib.TPUStrategy(TPUClusterResolver("local"), 3, num_cores)


def numbers(values: Any) -> list[Any]:
    return [value.tolist() for value in values]
