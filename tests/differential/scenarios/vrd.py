"""Reading variables."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device, replica_id
from tests.differential.variables import copies_of, in_scope, metric, variable

REDUCED = "SUM", "MEAN", "ONLY_FIRST_REPLICA"


def diverged(lib: Library, strategy: Any) -> Any:
    """Return a mirrored variable whose copies are 1 and 2."""
    made = variable(lib, strategy, 1.0)
    lib.write_copy(strategy.experimental_local_results(made)[1], 2.0)
    return made


@scenario("VRD-1", "VRD-8")
def a_replica_reads_its_own_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = diverged(lib, strategy)

    def fn() -> Any:
        return made.read_value(), made + 1.0, made * 2.0, -made

    return strategy.run(fn)


@scenario("VRD-1")
def an_update_reads_its_own_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = diverged(lib, strategy)
    return strategy.extended.update(made, lambda v: made.read_value(), group=False)


@scenario("VRD-2")
def outside_of_replicas_the_device_selects_the_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = diverged(lib, strategy)
    answers = [made.read_value(), in_scope(strategy, made.read_value)]
    for name in ("CPU:1", "CPU:3"):
        with lib.device(name):
            answers.append(made.read_value())
    return answers


@scenario("VRD-3", "VRD-4", core=(141,))
def copies_are_read_locally_in_replicas_and_combined_elsewhere(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for aggregation in REDUCED:
        made = metric(lib, strategy, aggregation, 1.0, 4.0)
        local = strategy.run(made.read_value)
        answers.append([local, in_scope(strategy, made.read_value), made.read_value()])
    return answers


@scenario("VRD-4", core=(142,), says=("Could not convert from", "NONE"))
def copies_without_an_aggregation_cannot_be_read(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "NONE", 1.0, 4.0)
    return in_scope(strategy, made.read_value)


@scenario("VAR-3", "VRD-3", "VRD-4", core=(116,))
def one_wrapper_for_all_replicas_has_values_of_their_own(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn() -> Any:
        made = [
            lib.distribute.Variable(
                1.0,
                synchronization=lib.distribute.VariableSynchronization.ON_READ,
                aggregation=lib.distribute.VariableAggregation[aggregation],
            )
            for aggregation in ("SUM", "MEAN")
        ]
        made[0].assign_add(2.0 + replica_id(lib))
        made[1].assign_add(3.0 * (1.0 + replica_id(lib)))
        return made

    made = strategy.run(fn)
    read = [strategy.extended.read_var(one) for one in made]
    return [[copies_of(strategy, one) for one in made], read]


@scenario("VRD-3", "VRD-4", "VRD-8")
def operators_read_as_the_context_says(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "MEAN", 0.0, 1.0)
    return [in_scope(strategy, lambda: made + 1.0), strategy.run(lambda: made + 1.0)]


@scenario("VRD-5", "VRD-8")
def outside_of_every_scope_copies_are_combined(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = metric(lib, strategy, "SUM", 1.0, 4.0)
    return [made + 1.0, made.numpy().tolist(), lib.total(made)]


@scenario("VRD-7")
def a_single_copy_reads_the_same_everywhere(lib: Library) -> Any:
    answers = []
    for strategy in (central(lib), one_device(lib)):
        made = variable(lib, strategy, 3.0, "SUM")
        results = strategy.run(lambda made=made: made + 0.0)
        answers.append([made.read_value(), in_scope(strategy, made.read_value)])
        answers.append(list(strategy.experimental_local_results(results)))
    return answers


@scenario("VRD-9", "VRD-10")
def the_copies_can_be_had(lib: Library) -> Any:
    strategies = mirrored(lib), central(lib)
    made = [variable(lib, each, 1.0, "SUM") for each in strategies]
    local = [
        each.experimental_local_results(one) for each, one in zip(strategies, made, strict=True)
    ]
    return [len(one) for one in local] + [local[1][0] is made[1], len(made[0].values)]


@scenario("VRD-11")
def a_variable_is_described_as_its_first_copy(lib: Library) -> Any:
    made = variable(lib, mirrored(lib), [[1.0, 2.0]], name="v")
    names = [str(copy.name).removesuffix(":0") for copy in made.values]
    return [str(made.name).removesuffix(":0"), names, made.dtype, lib.shape(made)]


@scenario("VRD-12")
def variables_compare_by_elements(lib: Library) -> Any:
    strategy = mirrored(lib)
    first, second = (variable(lib, strategy, [1.0, n]) for n in (2.0, 3.0))
    return [(first == second), (first != second), first is first.values[0]]


@scenario("VRD-13")
def the_repr_has_a_line_for_each_copy(lib: Library) -> Any:
    strategy = mirrored(lib)
    texts = [
        repr(variable(lib, strategy, 1.0, name="v")),
        repr(metric(lib, strategy, "SUM", 1.0, 2.0)),
    ]
    return [[line[:5] for line in text.splitlines()] for text in texts] + [
        text.partition(":")[0] for text in texts
    ]


def of_all_kinds(lib: Library) -> list[Any]:
    """Return a variable of each kind, of two rows."""
    value = [[1.0, 2.0], [3.0, 4.0]]
    kinds = [lib.distribute.get_strategy(), one_device(lib), central(lib), mirrored(lib)]
    made = [variable(lib, strategy, value, "MEAN") for strategy in kinds]
    return [*made, variable(lib, mirrored(lib), value, "MEAN", "ON_READ")]


@scenario("VRD-14")
def what_a_variable_tells_of_itself(lib: Library) -> Any:
    return [
        [
            each.is_initialized(),
            each.is_initialized(name="a name"),
            list(each.get_shape()),
            each.constraint,
            each.initializer,
        ]
        for each in of_all_kinds(lib)
    ]


@scenario("VRD-14")
def a_reference_stands_for_a_variable(lib: Library) -> Any:
    first, second = of_all_kinds(lib), of_all_kinds(lib)
    return [
        [
            one.ref() == one.ref(),
            one.ref() == other.ref(),
            one.ref() != one.ref(),
            hash(one.ref()) == hash(one.experimental_ref()),
            one.ref().deref() is one,
            len({one.ref(), one.ref(), other.ref()}),
            repr(one.ref()).startswith("<Reference wrapping"),
        ]
        for one, other in zip(first, second, strict=True)
    ]


@scenario("VRD-14")
def replicas_tell_of_a_variable(lib: Library) -> Any:
    strategy = mirrored(lib)
    made = variable(lib, strategy, [1.0, 2.0])
    return strategy.run(
        lambda: [made.is_initialized(), list(made.get_shape()), made.ref() == made.ref()]
    )


@scenario("VRD-14")
def elements_of_one_copy_are_read(lib: Library) -> Any:
    strategy = central(lib)
    answers = []
    for each in of_all_kinds(lib)[:3]:
        answers += [each.gather_nd([[0, 1], [1, 0]]), each.gather_nd([[1]], name="rows")]
        answers.append(each.gather_nd([[[1, 1]], [[0, 0]]]))
    made = variable(lib, strategy, [1.0, 2.0])
    return [*answers, strategy.run(lambda: made.gather_nd([[1]]))]


@scenario("VRD-14")
def elements_of_copies_are_read(lib: Library) -> Any:
    return [attempt(each.gather_nd, [[0, 1], [1, 0]]) for each in of_all_kinds(lib)[3:]]


@scenario("VRD-14")
def elements_on_servers_are_read(lib: Library) -> Any:
    with lib.served(1) as strategy:
        made = variable(lib, strategy, [[1.0, 2.0], [3.0, 4.0]])
        return [
            made.gather_nd([[0, 1], [1, 0]]),
            made.is_initialized(),
            list(made.get_shape()),
            made.constraint,
            made.ref() == made.ref(),
        ]


@scenario("VRD-14")
def elements_that_there_are_not_are_not_read(lib: Library) -> Any:
    (made, *_) = of_all_kinds(lib)
    return [attempt(made.gather_nd, each) for each in ([[2]], [[0, 2]], [[0, 0, 0]])]
