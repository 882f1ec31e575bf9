"""Writing rows of variables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, replica_id
from tests.differential.variables import in_scope, variable

SUMMED = "scatter_add", "scatter_sub"
MULTIPLIED = "scatter_mul", "scatter_div"
CHOSEN = "scatter_min", "scatter_max", "scatter_update"


def written(
    lib: Library,
    method: str,
    aggregation: str,
    start: list[float],
    kind: Callable[[Library], Any] = mirrored,
) -> Any:
    """Return a variable into which replica r wrote r + 2 at row r."""
    strategy = kind(lib)
    made = variable(lib, strategy, start, aggregation)

    def fn() -> Any:
        number = replica_id(lib)
        rows = lib.slices([number + 2.0], [number], len(start))
        getattr(made, method)(rows)

    strategy.run(fn)
    return made


@scenario("VSC-2", "VSC-6", core=(147,))
def rows_of_all_replicas_are_put_together(lib: Library) -> Any:
    return [
        written(lib, method, aggregation, [2.0, 1.0, 1.0])
        for method in SUMMED + MULTIPLIED
        for aggregation in ("SUM", "MEAN")
    ]


@scenario("VSC-2")
def equal_rows_accumulate(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, [10.0, 1.0], "SUM")

    def fn() -> Any:
        made.scatter_add(lib.slices([1.0, 2.0], [0, 0], 2))

    strategy.run(fn)
    return made


@scenario("VSC-2", core=(148,))
def some_writes_of_rows_have_no_combination(lib: Library) -> Any:
    return [
        attempt(written, lib, method, aggregation, [2.0, 1.0], says=(method,))
        for method in CHOSEN
        for aggregation in ("SUM", "MEAN")
    ]


@scenario("VSC-3", core=(147, 148))
def the_first_replicas_rows_are_written(lib: Library) -> Any:
    return [
        written(lib, method, "ONLY_FIRST_REPLICA", [4.0, 1.0, 1.0])
        for method in SUMMED + MULTIPLIED + CHOSEN
    ]


@scenario("VSC-4", core=(149,))
def without_an_aggregation_replicas_write_no_rows(lib: Library) -> Any:
    said = ("must specify an aggregation method",)
    return [
        attempt(written, lib, method, "NONE", [4.0, 1.0], says=said)
        for method in SUMMED + MULTIPLIED + CHOSEN
    ]


@scenario("VSC-2", "VSC-3")
def rows_of_a_single_copy_are_combined(lib: Library) -> Any:
    return [
        written(lib, "scatter_mul", aggregation, [2.0, 1.0, 1.0], central)
        for aggregation in ("MEAN", "ONLY_FIRST_REPLICA")
    ]


@scenario("VSC-1")
def outside_of_replicas_rows_of_every_copy_are_written(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for method in SUMMED + MULTIPLIED + CHOSEN:
        made = variable(lib, strategy, [4.0, 1.0, 8.0], "ONLY_FIRST_REPLICA")
        rows = lib.slices([2.0, 4.0], [0, 2], 3)
        in_scope(strategy, partial(getattr(made, method), rows))
        answers.append(made)
    return answers


@scenario("VSC-1", says=("scatter_max",))
def a_mean_has_no_greatest_rows(lib: Library) -> Any:
    made = variable(lib, mirrored(lib), [4.0, 1.0], "MEAN")
    return made.scatter_max(lib.slices([2.0], [0], 2))


@scenario("VSC-5")
def rows_are_indexed_slices(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, [4.0, 1.0], "SUM")
    return [attempt(getattr(made, each), lib.tensor([1.0, 1.0])) for each in SUMMED + MULTIPLIED]
