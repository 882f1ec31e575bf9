"""Writing variables."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    central,
    mirrored,
    one_device,
    per_replica,
    replica_id,
)
from tests.differential.variables import copies_of, in_scope, metric, variable

AGGREGATIONS = "NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"
METHODS = "assign", "assign_add", "assign_sub"


@scenario("VWR-1", core=(124,))
def outside_of_replicas_every_copy_is_written(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        for aggregation in AGGREGATIONS:
            made = variable(lib, strategy, 10.0, aggregation)
            made.assign(5.0)
            in_scope(strategy, partial(made.assign_add, 2.0))
            made.assign_sub(1.0)
            answers.append(made)
    return answers


@scenario("VWR-7", "VWR-8", "VWR-9", "VWR-11", core=(124,))
def replicas_write_what_is_equal_on_all(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        for aggregation in ("MEAN", "ONLY_FIRST_REPLICA"):
            for method, value in zip(METHODS, (1.0, 1.0, -1.0), strict=True):
                made = variable(lib, strategy, 0.0, aggregation)
                strategy.run(getattr(made, method), args=(lib.tensor(value),))
                answers.append(made)
    return answers


@scenario("VWR-3", core=(125,))
def a_mirrored_variable_is_a_value(lib: Library) -> Any:
    strategy = mirrored(lib)
    other = variable(lib, strategy, 2.0, "MEAN")
    answers = []
    for aggregation in ("MEAN", "ONLY_FIRST_REPLICA"):
        made = variable(lib, strategy, 0.0, aggregation)
        in_scope(strategy, partial(made.assign, other))
        answers.append(copies_of(strategy, made))
        strategy.run(partial(made.assign_add, other))
        answers.append(copies_of(strategy, made))
    return answers


@scenario("VWR-5", "VWR-7", "VWR-9", core=(126,))
def replicas_write_values_of_their_own(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        values = per_replica(lib, strategy, [lib.tensor(2.0), lib.tensor(2.0)])
        for aggregation in AGGREGATIONS[1:]:
            made = variable(lib, strategy, 0.0, aggregation)
            strategy.run(made.assign, args=(values,))
            answers.append(made)
    return answers


@scenario("VWR-2")
def a_value_for_each_replica_is_none_for_all(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 0.0)
    values = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    return [attempt(partial(made.assign, values, read_value=False)), made]


@scenario("VWR-2")
def a_single_copy_takes_no_value_for_each_replica(lib: Library) -> Any:
    strategy = central(lib)
    made = variable(lib, strategy, 0.0)
    values = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    write = partial(made.assign, values, read_value=False)
    return [attempt(in_scope, strategy, write), made]


@scenario("VWR-4")
def an_update_writes_its_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 1.0, "SUM")
    mirrored_values = strategy.extended.reduce_to(
        "MEAN", per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(3.0)]), made
    )
    strategy.extended.update(made, lambda v, x: v.assign_add(x), args=(mirrored_values,))
    return made


@scenario("VWR-9", core=(130,))
def only_the_first_replica_is_heard(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        made = variable(lib, strategy, 5.0, "ONLY_FIRST_REPLICA")
        strategy.run(lambda made=made: made.assign(lib.tensor(float(replica_id(lib)))))
        answers.append(made)
    return answers


@scenario("VWR-9", "VRD-4", core=(117,))
def only_the_first_replica_counts_when_copies_are_read(lib: Library) -> Any:
    strategy = mirrored(lib)
    on_read = metric(lib, strategy, "ONLY_FIRST_REPLICA", 1.0, 1.0)
    on_write = variable(lib, strategy, 1.0, "ONLY_FIRST_REPLICA")

    def fn() -> Any:
        value = lib.tensor([6.0, 11.0][replica_id(lib)])
        on_read.assign_add(value)
        on_write.assign_add(value)
        return on_read + 0.0, on_write + 0.0

    return [strategy.run(fn), on_read.read_value(), on_write.read_value()]


@scenario("VWR-10", core=(132,))
def without_an_aggregation_replicas_do_not_write(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 1.0)
    said = ("must specify an aggregation method",)
    write = partial(made.assign, 5.0, read_value=False)
    return [attempt(strategy.run, write, says=said), made]


@scenario("VWR-10", says=("must specify an aggregation method",))
def without_an_aggregation_one_copy_is_not_written(lib: Library) -> Any:
    strategy = central(lib)
    made = variable(lib, strategy, 1.0)
    return strategy.run(made.assign, args=(5.0,))


@scenario("VWR-6", core=(134,), says=("non-DistributedValues value 5.0",))
def a_number_has_no_sum_over_replicas(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 1.0, "SUM")
    return strategy.run(made.assign, args=(5.0,))


@scenario("VWR-6")
def a_number_is_the_sum_over_one_replica(lib: Library) -> Any:
    strategy = mirrored(lib, 1)
    made = variable(lib, strategy, 1.0, "SUM")
    strategy.run(made.assign, args=(5.0,))
    return made


@scenario("VWR-7", "VWR-11", core=(135,))
def replicas_write_the_mean(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for method, start in zip(METHODS, (1.0, 1.0, 5.0), strict=True):
        made = variable(lib, strategy, start, "MEAN")

        def fn(write: Any) -> Any:
            return write(lib.tensor(float(replica_id(lib))))

        answers.append([strategy.run(fn, args=(getattr(made, method),)), made])
    return answers


@scenario("VWR-8", core=(136,))
def one_value_of_all_replicas_is_its_mean(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for method, value in zip(METHODS, (5.0, 5.0, 1.0), strict=True):
        made = variable(lib, strategy, 5.0 if method == "assign_sub" else 1.0, "MEAN")
        strategy.run(getattr(made, method), args=(value,))
        answers.append(made)
    return answers


@scenario("VWR-1", "VWR-20", "VWR-22", core=(137,))
def a_write_returns_the_new_values_if_they_are_wanted(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 1.0, "MEAN")
    with strategy.scope():
        wanted = made.assign_add(6.0, read_value=True)
        unwanted = made.assign_add(2.0, read_value=False)
    return [wanted, unwanted, made]


@scenario("VWR-20")
def a_write_to_one_copy_returns_a_handle(lib: Library) -> Any:
    made = [variable(lib, each, 1.0) for each in (central(lib), one_device(lib))]
    return [each.assign(3.0) + 0.0 for each in made]


@scenario("VWR-21")
def a_write_in_a_replica_returns_its_value(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        made = variable(lib, strategy, 1.0, "MEAN")
        values = per_replica(lib, strategy, [lib.tensor(2.0), lib.tensor(4.0)])
        answers.append(strategy.run(made.assign, args=(values,)))
    return answers


@scenario("VWR-13")
def every_replica_has_to_write(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, 1.0, "MEAN")

    def fn() -> Any:
        return made.assign(2.0) if replica_id(lib) == 0 else None

    return [attempt(strategy.run, fn, says=("different number",)), made]


@scenario("VWR-14")
def another_strategy_cannot_write(lib: Library) -> Any:
    owner, other = mirrored(lib), mirrored(lib)
    made = variable(lib, owner, 1.0, "MEAN")
    said = ("Mixing different",)
    return [
        attempt(in_scope, other, partial(made.assign, 2.0), says=said),
        attempt(other.run, made.assign, (2.0,), says=said),
        made,
    ]


@scenario("VWR-15")
def writes_need_no_scope(lib: Library) -> Any:
    made = [variable(lib, each, 1.0, "MEAN") for each in (mirrored(lib), central(lib))]
    for each in made:
        each.assign(3.0)
    return made


@scenario("VWR-1")
def a_value_of_another_shape_is_refused(lib: Library) -> Any:
    made = variable(lib, mirrored(lib), [1.0, 2.0])
    return [attempt(made.assign, [1.0, 2.0, 3.0]), made]


@scenario("VWR-24")
def what_replicas_have_counted_is_assigned(lib: Library) -> Any:
    answers = []
    for aggregation in AGGREGATIONS:
        strategy = mirrored(lib)
        made, counts = variable(lib, strategy), metric(lib, strategy, aggregation, 1.0, 4.0)
        answers += [attempt(made.assign, counts), copies_of(strategy, made)]
        update = partial(strategy.extended.update, made, lambda v, x: v.assign(x))
        answers += [attempt(lambda call=update, x=counts: call(args=(x,)) and None)]
        answers += [copies_of(strategy, made)]
    return answers


@scenario("VWR-24", says=("Mixing different tf.distribute.Strategy objects",))
def what_replicas_of_another_strategy_have_counted_is_not_assigned(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        counts = metric(lib, mirrored(lib), "SUM", 1.0, 4.0)
        made = variable(lib, strategy)
        for method in METHODS:
            answers.append(attempt(getattr(made, method), counts))
        answers.append(copies_of(strategy, made))
    return answers
