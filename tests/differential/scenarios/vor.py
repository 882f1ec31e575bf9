"""Writing variables whose copies are brought together when they are read."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored, per_replica
from tests.differential.variables import copies_of, in_scope, metric, variable

METHODS = "assign", "assign_add", "assign_sub"
AGGREGATIONS = "SUM", "MEAN", "ONLY_FIRST_REPLICA"


@scenario("VOR-1", core=(138,))
def replicas_write_their_own_copies(lib: Library) -> Any:
    strategy = mirrored(lib)
    values = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    answers = []
    for aggregation in ("NONE", *AGGREGATIONS):
        for method in METHODS:
            made = variable(lib, strategy, 4.0, aggregation, "ON_READ")
            strategy.run(getattr(made, method), args=(values,))
            answers.append(copies_of(strategy, made))
    return answers


@scenario("VOR-2", "VOR-5", core=(138,))
def outside_of_replicas_every_copy_is_written(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for aggregation in ("MEAN", "ONLY_FIRST_REPLICA"):
        made = metric(lib, strategy, aggregation, 3.0, 3.0)
        for method, value in zip(METHODS, (5.0, 2.0, 6.0), strict=True):
            in_scope(strategy, partial(getattr(made, method), value))
            answers.append(copies_of(strategy, made))
    return answers


@scenario("VOR-2", core=(139,))
def a_sum_is_spread_over_the_copies(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 3.0, 4.0)
    in_scope(strategy, lambda: made.assign(2.0))
    return [copies_of(strategy, made), made.read_value()]


@scenario("VOR-2", core=(145,))
def what_was_assigned_is_read(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for aggregation in AGGREGATIONS:
        made = metric(lib, strategy, aggregation, 0.5, 1.5)
        before = strategy.extended.read_var(made) + 0.0
        in_scope(strategy, partial(made.assign, 6.0))
        answers.append([before, strategy.extended.read_var(made) + 0.0])
    return answers


@scenario("VOR-2")
def the_sum_of_integers_is_what_was_assigned(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 0, "SUM", "ON_READ")
    made.assign(3)
    return [copies_of(strategy, made), made.read_value()]


@scenario("VOR-2")
def without_an_aggregation_the_result_cannot_be_read(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 0.0, "NONE", "ON_READ")
    result = attempt(made.assign, 3.0, says=("Could not convert from",))
    return [result, copies_of(strategy, made)]


@scenario("VOR-2")
def an_assignment_returns_what_a_read_would(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = [metric(lib, strategy, each, 1.0, 4.0) for each in AGGREGATIONS]
    return [each.assign(3.0) for each in made]


@scenario("VOR-3")
def what_is_assigned_is_converted(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 1.0, 4.0)
    made.assign(2)
    return [copies_of(strategy, made), made.read_value()]


@scenario("VOR-4", core=(140,))
def a_sum_takes_no_deltas(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 1.0, 4.0)
    said = ("SyncOnReadVariable does not support",)
    return [
        attempt(in_scope, strategy, partial(write, 1.0), says=said)
        for write in (made.assign_add, made.assign_sub)
    ] + [copies_of(strategy, made)]


@scenario("VOR-6")
def without_an_aggregation_there_are_no_deltas(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "NONE", 1.0, 4.0)
    result = attempt(made.assign_add, 1.0, says=("Could not convert from",))
    return [result, copies_of(strategy, made)]


@scenario("VOR-8")
def an_update_works_on_one_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 1.0, 4.0)

    def fn(copy: Any) -> Any:
        copy.assign_add(1.0)
        return made.read_value()

    return [strategy.extended.update(made, fn), copies_of(strategy, made)]


@scenario("VOR-9", core=(151,))
def rows_cannot_be_written(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, [1.0, 2.0], "SUM", "ON_READ")
    methods = ["add", "sub", "mul", "div", "min", "max", "update"]
    rows = lib.slices([1.0], [0], 2)
    return [
        attempt(strategy.run, getattr(made, f"scatter_{method}"), (rows,)) for method in methods
    ]


@scenario("VOR-11")
def replicas_can_reduce_their_copies(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 1.0, 4.0)

    def fn() -> Any:
        return lib.distribute.get_replica_context().all_reduce("SUM", made + 0.0)

    return strategy.run(fn)
