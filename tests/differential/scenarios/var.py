"""Making variables."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    both,
    central,
    mirrored,
    one_device,
    per_replica,
    replica_id,
)
from tests.differential.variables import copies_of, in_scope, variable


def name_of(made: Any) -> str:
    """Return the name of a variable, without the number of its output."""
    return str(made.name).removesuffix(":0")


@scenario("VAR-3")
def copies_are_synchronized_on_write(lib: Library) -> Any:
    return [variable(lib, each, 1.0).synchronization for each in both(lib)]


@scenario("VAR-1")
def values_that_no_variable_can_have(lib: Library) -> Any:
    strategy = mirrored(lib)

    def write(start: Any, value: Any) -> None:
        variable(lib, strategy, start).assign(value)

    return [
        attempt(variable, lib, strategy, None),
        attempt(write, 1.0, None),
        attempt(write, lib.tensor(1, "int32"), 2.5),
    ]


@scenario("VAR-1")
def creators_of_the_user_see_each_variable(lib: Library) -> Any:
    inner: list[str] = []
    outer: list[str] = []

    def noting(seen: list[str]) -> Any:
        def creator(next_creator: Any, **kwargs: Any) -> Any:
            seen.append(str(kwargs["name"]).rstrip("/"))
            return next_creator(**kwargs)

        return creator

    strategy = mirrored(lib)
    outside, inside = map(lib.creator_scope, (noting(outer), noting(inner)))
    with outside, strategy.scope(), inside:
        lib.distribute.Variable(1.0, name="v")
    return [inner, outer]


@scenario("VAR-2", "VAR-3", core=(121,))
def a_random_initialiser_runs_once(lib: Library) -> Any:
    strategy = mirrored(lib)
    calls: list[int] = []

    def initial() -> Any:
        calls.append(1)
        return lib.tensor(float(len(calls)))

    made = [
        variable(lib, strategy, initial),
        variable(lib, strategy, initial, synchronization="ON_READ"),
        strategy.run(lambda: lib.distribute.Variable(initial)),
    ]
    return [copies_of(strategy, one) for one in made]


@scenario("VAR-3", "VAR-4", "VAR-5", "VAR-7")
def strategies_keep_their_own_numbers_of_copies(lib: Library) -> Any:
    strategies = [
        mirrored(lib),
        mirrored(lib, 1),
        central(lib),
        central(lib, 1),
        one_device(lib),
        lib.distribute.get_strategy(),
    ]
    made = [(each, variable(lib, each, 1.0, "MEAN")) for each in strategies]
    return [[type(v).__name__, copies_of(each, v)] for each, v in made[:1]] + [
        copies_of(each, v) for each, v in made
    ]


@scenario("VAR-9")
def a_nested_scope_wraps_once(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope(), strategy.scope():
        made = lib.distribute.Variable(1.0)
    return copies_of(strategy, made)


@scenario("VAR-10", core=(106, 120))
def replicas_make_one_variable_together(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        made = lib.distribute.Variable(1.0 + replica_id(lib), name="foo")
        lib.distribute.get_replica_context().merge_call(lambda strategy: None)
        return made

    made = strategy.run(fn)
    return [name_of(made), made]


@scenario("VAR-10", core=(120,))
def the_first_replica_may_be_the_only_one_to_initialise(lib: Library) -> Any:
    strategy = mirrored(lib)
    seen: list[int] = []

    def initial() -> Any:
        seen.append(replica_id(lib))
        return lib.tensor(5.0)

    made = strategy.run(lambda: [lib.distribute.Variable(initial) for _ in range(2)])
    return [seen, made]


@scenario("VAR-10")
def several_variables_keep_their_order(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        return [lib.distribute.Variable(float(n), name=f"v{n}") for n in range(5)]

    return [[name_of(made), made] for made in strategy.run(fn)]


@scenario("VAR-10", core=(109,))
def equal_canonical_names_make_different_variables(lib: Library) -> Any:
    strategy = mirrored(lib)
    names = ["foo/bar", "foo_1/bar", "foo_1/bar_1", "foo/bar_1"]

    def fn() -> Any:
        return [lib.distribute.Variable(1.0, name=name) for name in names]

    made = strategy.run(fn)
    return [[name_of(one) for one in made], len({id(one) for one in made})]


@scenario("VAR-10", core=(110,))
def numbers_in_names_may_differ_between_replicas(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        return lib.distribute.Variable(1.0, name=f"foo_{replica_id(lib)}")

    return name_of(strategy.run(fn))


@scenario("VAR-10", core=(119,))
def canonical_names_lack_certain_numbers(lib: Library) -> Any:
    """Two names match if replicas can make one variable under both."""
    strategy = mirrored(lib)

    def made_under(first: str | None, second: str | None) -> str:
        def fn() -> Any:
            return lib.distribute.Variable(1.0, name=second if replica_id(lib) else first)

        return name_of(strategy.run(fn))

    pairs = [
        (None, "Variable"),
        ("foo_3/bar_1/baz", "foo/bar/baz"),
        ("foo/bar_1", "foo/bar"),
        ("foo_3_4/bar", "foo_3/bar"),
        ("foo_a/bar", "foo/bar"),
        ("foo/_3bar", "foo/bar"),
        ("foo/bar3", "foo/bar"),
        ("foo/bar_", "foo/bar"),
    ]
    return [isinstance(attempt(made_under, *pair), str) for pair in pairs]


@scenario("VAR-11", core=(111,), says=("Tried to create variable", "mismatching name"))
def names_may_not_differ_between_replicas(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        return lib.distribute.Variable(1.0, name="bar" if replica_id(lib) else "foo")

    return strategy.run(fn)


@scenario("VAR-12", says=("Tried to create variable", "mismatching name"))
def a_replica_may_not_make_more_variables(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        for _ in range(1 + replica_id(lib)):
            lib.distribute.Variable(1.0)

    return strategy.run(fn)


@scenario("VAR-15")
def variables_are_trainable_unless_on_read(lib: Library) -> Any:
    return [
        [
            bool(variable(lib, each, 1.0).trainable),
            bool(variable(lib, each, 1.0, "SUM", "ON_READ").trainable),
            bool(variable(lib, each, 1.0, "SUM", "ON_READ", trainable=True).trainable),
        ]
        for each in (mirrored(lib), central(lib), one_device(lib))
    ]


@scenario("VAR-16")
def a_variable_is_put_beside_another(lib: Library) -> Any:
    strategy = mirrored(lib)
    first = variable(lib, strategy, 1.0)
    with strategy.scope(), strategy.extended.colocate_vars_with(first):
        return lib.distribute.Variable(2.0)


@scenario("VAR-18")
def a_variable_knows_its_strategy(lib: Library) -> Any:
    strategies = mirrored(lib), central(lib), central(lib, 1), one_device(lib)
    made = [(each, variable(lib, each)) for each in strategies]
    found = [each.extended.variable_created_in_scope(v) for each, v in made]
    foreign = strategies[0].extended.variable_created_in_scope(made[1][1])
    return [found, foreign, made[0][1].distribute_strategy is strategies[0]]


@scenario("VAR-3", "VAR-19")
def modes_are_kept_and_have_defaults(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = [
        variable(lib, strategy, 1.0, "MEAN", "ON_READ"),
        variable(lib, strategy, 1.0, "SUM", "ON_WRITE"),
        in_scope(strategy, lambda: lib.distribute.Variable(1.0, aggregation=None)),
    ]
    return [[type(one).__name__, one.aggregation] for one in made]


@scenario("VAR-20", core=(112,), says=("NONE", "synchronization mode is not supported"))
def copies_need_a_synchronization(lib: Library) -> Any:
    return variable(lib, mirrored(lib), 1.0, "NONE", "NONE")


@scenario("VAR-20", "VAR-24")
def a_single_copy_takes_any_synchronization(lib: Library) -> Any:
    strategy = central(lib)
    unsynchronized = variable(lib, strategy, 1.0, "SUM", "NONE")
    on_read = variable(lib, strategy, 1.0, "SUM", "ON_READ")
    values = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    strategy.run(on_read.assign_add, args=(values,))
    return [unsynchronized, on_read, on_read.synchronization, on_read.trainable]


@scenario("VAR-21", core=(113,))
def an_unknown_synchronization_is_refused(lib: Library) -> Any:
    said = ("Invalid variable synchronization mode",)
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        with strategy.scope():
            make = lib.distribute.Variable
            call = partial(make, 1.0, synchronization="x", name="v")
            answers.append(attempt(call, says=said))
    return answers


@scenario("VAR-22", says=("Invalid variable aggregation mode",))
def an_unknown_aggregation_is_refused(lib: Library) -> Any:
    with mirrored(lib).scope():
        return lib.distribute.Variable(1.0, aggregation="x", name="v")


@scenario("VAR-22", says=("Invalid variable aggregation mode",))
def one_copy_refuses_an_unknown_aggregation(lib: Library) -> Any:
    with central(lib).scope():
        return lib.distribute.Variable(1.0, aggregation="x")


@scenario("VAR-23", says=("aggregation=MEAN and a non-floating dtype",))
def copies_of_integers_have_no_mean(lib: Library) -> Any:
    return variable(lib, mirrored(lib), 1, "MEAN")


@scenario("VAR-23")
def a_single_copy_of_an_integer_is_not_asked(lib: Library) -> Any:
    return variable(lib, central(lib), 1, "MEAN")


@scenario("VAR-3", "VWR-23")
def a_deep_copy_is_independent(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), central(lib), one_device(lib)):
        made = variable(lib, strategy, [1.0, 2.0], "MEAN")
        duplicate = copy.deepcopy(made)
        duplicate.assign([5.0, 6.0])
        answers.append([made, duplicate, duplicate is made])
    return answers


def of_one_copy_and_of_two(lib: Library, value: Any = (1.0, 2.0)) -> list[Any]:
    """Return variables of strategies with one copy and with two."""
    kinds = [lib.distribute.get_strategy(), one_device(lib), central(lib), mirrored(lib)]
    return [variable(lib, strategy, value) for strategy in kinds]


@scenario("VAR-25")
def members_that_belong_to_graphs(lib: Library) -> Any:
    return [
        attempt(read)
        for made in of_one_copy_and_of_two(lib)
        for read in (
            made.eval,
            made.initialized_value,
            made.to_proto,
            lambda made=made: made.initial_value,
            lambda made=made: made.graph,
            lambda made=made: made.op,
        )
    ]


@scenario("VAR-25")
def loading_assigns(lib: Library) -> Any:
    made = of_one_copy_and_of_two(lib)
    return [[each.load([3.0, 4.0]), each] for each in made]


@scenario("VAR-25")
def a_shape_is_set_that_it_has(lib: Library) -> Any:
    return [
        [attempt(made.set_shape, each) for each in ([2], [None], [3], [2, 1])]
        for made in of_one_copy_and_of_two(lib)
    ]


@scenario("VAR-25")
def copies_do_not_count(lib: Library) -> Any:
    return attempt(of_one_copy_and_of_two(lib, 0)[3].count_up_to, 2)


@scenario("VAR-25")
def one_copy_counts(lib: Library) -> Any:
    made = of_one_copy_and_of_two(lib, 0)[0]
    return [attempt(made.count_up_to, 1) for _ in range(2)]
