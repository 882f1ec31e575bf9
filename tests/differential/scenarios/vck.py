"""Saving and restoring variables."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device
from tests.differential.variables import copies_of, metric, variable

AGGREGATIONS = "NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"


def named(lib: Library, strategy: Any, value: float, *modes: str) -> Any:
    """Return a variable named "v", by which ours is found in checkpoints."""
    return variable(lib, strategy, value, *modes, name="v")


def plain(lib: Library, value: float) -> Any:
    """Return a variable of no strategy."""
    return lib.distribute.Variable(value, name="v")


@scenario("VCK-1", "VCK-7", core=(153,))
def mirrored_variables_take_each_others_values(lib: Library) -> Any:
    answers = []
    for aggregation in AGGREGATIONS:
        strategy = mirrored(lib)
        saved = lib.save({"v": named(lib, strategy, 1.0, aggregation)})
        other = mirrored(lib)
        restored = named(lib, other, 5.0, aggregation), plain(lib, 7.0)
        for each in restored:
            lib.restore(saved, {"v": each})
        answers.append([copies_of(other, restored[0]), restored[1]])
    return answers


@scenario("VCK-1", "VCK-7", core=(153,))
def mirrored_variables_take_values_of_plain_ones(lib: Library) -> Any:
    saved = lib.save({"v": plain(lib, 3.0)})
    answers = []
    for aggregation in AGGREGATIONS:
        strategy = mirrored(lib)
        restored = named(lib, strategy, 5.0, aggregation)
        lib.restore(saved, {"v": restored})
        answers.append(copies_of(strategy, restored))
    return answers


@scenario("VCK-1", core=(157,))
def a_change_is_undone_on_every_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = named(lib, strategy, 1.0, "SUM")
    saved = lib.save({"v": made})
    made.assign(9.0)
    lib.restore(saved, {"v": made})
    return made


@scenario("VCK-2", "VCK-3", "VCK-4", "VCK-7", core=(154,))
def copies_are_saved_combined(lib: Library) -> Any:
    answers = []
    for aggregation in AGGREGATIONS[1:]:
        strategy = mirrored(lib)
        made = metric(lib, strategy, aggregation, 4.0, 3.0, name="v")
        saved = lib.save({"v": made})
        made.assign(0.0)
        lib.restore(saved, {"v": made})
        other = plain(lib, 0.0)
        lib.restore(saved, {"v": other})
        answers.append([copies_of(strategy, made), other])
    return answers


@scenario("VCK-2", "VCK-3", "VCK-4", "VCK-7", core=(154,))
def copies_take_the_values_of_plain_variables(lib: Library) -> Any:
    saved = lib.save({"v": plain(lib, 2.0)})
    answers = []
    for aggregation in AGGREGATIONS:
        strategy = mirrored(lib)
        restored = named(lib, strategy, 0.0, aggregation, "ON_READ")
        lib.restore(saved, {"v": restored})
        answers.append(copies_of(strategy, restored))
    return answers


@scenario("VCK-5")
def copies_without_an_aggregation_are_not_saved(lib: Library) -> Any:
    made = metric(lib, mirrored(lib), "NONE", 4.0, 3.0, name="v")
    return attempt(lib.save, {"v": made}, says=("Could not convert from",))


@scenario("VCK-6", "VCK-7")
def strategies_take_each_others_values(lib: Library) -> Any:
    makers = mirrored, central, one_device
    answers = []
    for source in makers:
        saved = lib.save({"v": named(lib, source(lib), 4.0, "SUM")})
        for target in makers:
            strategy = target(lib)
            restored = named(lib, strategy, 1.0, "SUM")
            lib.restore(saved, {"v": restored})
            answers.append(copies_of(strategy, restored))
    return answers


@scenario("VCK-8", core=(159,))
def what_is_made_later_starts_with_its_value(lib: Library) -> Any:
    saved = lib.save({"v": plain(lib, 6.0)})
    answers = []
    for maker in (mirrored, central, one_device):
        strategy = maker(lib)
        made = lib.restore_first(saved, strategy, "v", partial(named, lib, strategy, 0.0, "MEAN"))
        answers.append(copies_of(strategy, made))
    return answers


@scenario("VCK-8", core=(159,))
def what_replicas_make_later_starts_with_its_value(lib: Library) -> Any:
    saved = lib.save({"v": plain(lib, 6.0)})
    strategy = mirrored(lib)
    made = lib.restore_first(
        saved,
        strategy,
        "v",
        lambda: strategy.run(lambda: lib.distribute.Variable(1.0, name="v")),
    )
    return copies_of(strategy, made)


@scenario("VCK-2", "VCK-8")
def a_sum_made_later_is_spread_over_its_copies(lib: Library) -> Any:
    saved = lib.save({"v": plain(lib, 6.0)})
    strategy = mirrored(lib)
    made = lib.restore_first(
        saved, strategy, "v", lambda: named(lib, strategy, 0.0, "SUM", "ON_READ")
    )
    return copies_of(strategy, made)


@scenario("VCK-9")
def training_goes_on_while_a_checkpoint_is_written(lib: Library) -> Any:
    answers = []
    for maker in (mirrored, central):
        strategy = maker(lib)
        made = named(lib, strategy, 1.0, "SUM")
        saved = lib.save({"v": made}, wait=False)
        made.assign(9.0)
        lib.restore(saved, {"v": made})
        answers.append(copies_of(strategy, made))
    return answers
