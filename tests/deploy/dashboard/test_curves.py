"""The memory of curves: what it keeps, and that it does not grow."""

from __future__ import annotations

import json
import math

from stratagem_deploy.dashboard.watcher import Curves


def test_only_the_points_after_a_number_are_told() -> None:
    curves = Curves(5.0)
    for number in range(4):
        curves.add(100.0 + number, {"steps": {"worker:0": float(number)}})
    told = curves.since(2)
    assert told["number"] == 4
    assert told["times"] == [102.0, 103.0]
    assert told["charts"] == {"steps": {"worker:0": [2.0, 3.0]}}


def test_a_series_has_gaps_where_it_has_no_number() -> None:
    curves = Curves(5.0)
    for value in ({"a": 1.0}, {"b": math.nan}, {"a": math.inf, "b": 2.0}):
        curves.add(0.0, {"chart": value})
    told = curves.since(0)
    assert told["charts"]["chart"] == {"a": [1.0, None, None], "b": [None, None, 2.0]}
    json.dumps(told, allow_nan=False)


def test_an_hour_is_kept_of_a_bounded_number_of_curves() -> None:
    curves = Curves(600.0)
    many = {f"chart {c}": {f"series {s}": 1.0 for s in range(50)} for c in range(100)}
    for number in range(20):
        curves.add(float(number), many)
    told = curves.since(0)
    assert (told["first"], told["number"], len(told["times"])) == (15, 20, 6)
    assert len(told["charts"]) == 40
    assert {len(series) for series in told["charts"].values()} == {16}
