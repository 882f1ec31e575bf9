"""Distributed datasets and their iterators."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.inputs import steps
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device


@scenario("INP-40")
def each_iterator_starts_from_the_beginning(lib: Library) -> Any:
    strategy = mirrored(lib)
    distributed = strategy.experimental_distribute_dataset(lib.range(6).batch(2))
    first, second = iter(distributed), iter(distributed)
    return [
        next(first),
        next(first),
        next(second),
        next(first),
        next(iter(distributed)),
    ]


@scenario("INP-41", "INP-11", core=(173,))
def a_loop_squares_what_it_is_given(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5.0, 6.0, 7.0, 8.0]).batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    by_loop = [strategy.run(lambda x: x * x, (x,)) for x in distributed]
    return [by_loop, [strategy.run(lambda x: x * x, (x,)) for x in iter(distributed)]]


@scenario("INP-42", core=(175,))
def a_loop_ends_with_an_error(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5, 6, 7, 8]).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    seen = []

    def loop() -> None:
        while True:
            seen.append(strategy.reduce("SUM", iterator.get_next(), axis=0))

    error = attempt(loop)
    return [error, seen, attempt(next, iterator), attempt(iterator.get_next)]


@scenario("INP-43")
def an_optional_ends_a_loop(lib: Library) -> Any:
    strategy = mirrored(lib)
    iterator = iter(strategy.experimental_distribute_dataset(lib.range(3).batch(2)))
    seen = []
    optional = iterator.get_next_as_optional()
    while bool(optional.has_value()):
        seen.append(optional.get_value())
        optional = iterator.get_next_as_optional()
    return [seen, attempt(optional.get_value)]


@scenario("INP-44", core=(168,))
def a_replica_cannot_ask_for_input(lib: Library) -> Any:
    strategy = mirrored(lib)
    iterator = iter(strategy.experimental_distribute_dataset(lib.range(4).batch(2)))
    says = ("should be called from outside of replica_fn",)
    return [
        attempt(strategy.run, lambda: next(iterator), says=says),
        attempt(strategy.run, lambda: iterator.get_next(), says=says),
        next(iterator),
    ]


@scenario("INP-45")
def the_form_of_elements_is_told(lib: Library) -> Any:
    dataset = lib.dataset([{"x": lib.tensor([1.0, 2.0]), "y": 3}] * 4).batch(2)
    distributed = mirrored(lib).experimental_distribute_dataset(dataset)
    alone = one_device(lib).experimental_distribute_dataset(dataset)
    return [
        distributed.element_spec,
        iter(distributed).element_spec,
        alone.element_spec,
    ]


@scenario("INP-47")
def datasets_know_their_number_of_steps(lib: Library) -> Any:
    return [
        int(strategy.experimental_distribute_dataset(dataset).cardinality)
        for strategy in (mirrored(lib), central(lib), one_device(lib))
        for dataset in (lib.range(10).batch(4), lib.range(9).batch(3))
    ]


@scenario("INP-48", core=(167,))
def orders_last_or_change_as_the_dataset_says(lib: Library) -> Any:
    strategy = mirrored(lib)
    answers = []
    for dataset in (
        lib.range(100).shuffle(100).batch(10).cache(),
        lib.range(100).shuffle(100).batch(10),
    ):
        distributed = strategy.experimental_distribute_dataset(dataset)
        first, second = epoch(strategy, distributed), epoch(strategy, distributed)
        assert sorted(first) == sorted(second) == list(range(100))
        answers.append(first == second)
    return answers


def epoch(strategy: Any, distributed: Any) -> list[int]:
    """Return the numbers of one pass in their order."""
    return [
        int(number) for parts in steps(strategy, distributed) for part in parts for number in part
    ]


@scenario("INP-11", core=(74,))
def means_weigh_rows(lib: Library) -> Any:
    strategy = mirrored(lib)
    dataset = lib.dataset([5.0, 6.0, 7.0]).batch(3)
    (value,) = strategy.experimental_distribute_dataset(dataset)
    return strategy.reduce("MEAN", value, axis=0)


@scenario("INP-46")
def a_dataset_is_folded_over_its_steps(lib: Library) -> Any:
    strategy = mirrored(lib)
    distributed = strategy.experimental_distribute_dataset(lib.range(6).batch(4))

    def add(total: Any, value: Any) -> Any:
        return total + strategy.reduce("SUM", value, axis=0)

    return distributed.reduce(lib.tensor(100, "int64"), add)


@scenario("INP-54")
def an_optional_of_a_value(lib: Library) -> Any:
    optional = lib.distribute.Optional.from_value({"a": lib.tensor([1.0, 2.0]), "b": (3, True)})
    return [bool(optional.has_value()), optional.get_value(), optional.element_spec]


@scenario("INP-54")
def an_optional_without_a_value(lib: Library) -> Any:
    form = lib.distribute.Optional.from_value(lib.tensor([1.0])).element_spec
    empty = lib.distribute.Optional.empty(form)
    nothing = attempt(lib.distribute.Optional.from_value, None)
    return [bool(empty.has_value()), attempt(empty.get_value), empty.element_spec, nothing]


@scenario("INP-54")
def an_optional_tells_the_form_of_a_step(lib: Library) -> Any:
    answers = []
    for strategy in (mirrored(lib), one_device(lib)):
        iterator = iter(strategy.experimental_distribute_dataset(lib.range(6).batch(4)))
        optionals = [iterator.get_next_as_optional() for _ in range(3)]
        answers += [[bool(each.has_value()), each.element_spec] for each in optionals]
    return answers
