"""What may be called in which context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.answer import attempt
from tests.differential.contexts import MIX, state, strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, cpus, mirrored, replica_id


def across(lib: Library, strategy: Any) -> dict[str, Callable[[], Any]]:
    """Return methods that act across replicas."""
    extended, one = strategy.extended, lib.tensor([1.0])
    pairs = [(one, "/device:CPU:0")]
    return {
        "scope": lambda: strategy.scope().__enter__(),
        "run": lambda: strategy.run(lambda: 1),
        "reduce": lambda: strategy.reduce("MEAN", one, axis=None),
        "reduce an axis": lambda: strategy.reduce("MEAN", one, axis=0),
        "gather": lambda: strategy.gather(one, axis=0),
        "reduce_to": lambda: extended.reduce_to("MEAN", one, "/device:CPU:0"),
        "batch_reduce_to": lambda: extended.batch_reduce_to("MEAN", pairs),
        "update_non_slot": lambda: extended.update_non_slot(("/device:CPU:0",), lambda: None),
        "make_numpy_dataset": lambda: extended.experimental_make_numpy_dataset([1.0]),
        "distribute_dataset": lambda: [
            strategy.experimental_distribute_dataset(lib.range(4).batch(2)) is not None
        ],
        "local_results": lambda: strategy.experimental_local_results(1),
        "num_replicas_in_sync": lambda: strategy.num_replicas_in_sync,
    }


def assigned(variable: Any) -> None:
    """Assign to a variable."""
    variable.assign(2.0)


@scenario("CTX-A1", "CTX-A2", "CTX-A3", "CTX-A4", "CTX-A5", "CTX-A7", "CTX-35")
def what_a_replica_may_not_call(lib: Library) -> Any:
    strategy = mirrored(lib)
    calls = across(lib, strategy)
    says = ("cross-replica context", "merge_call", "all_gather")
    answers: list[Any] = []

    def fn() -> None:
        if replica_id(lib) == 0:
            answers.extend([name, attempt(calls[name], says=says)] for name in calls)

    strategy.run(fn)
    return answers


@scenario("CTX-A1", "CTX-A2", "CTX-A3", "CTX-A4", "CTX-A5", "CTX-A7", "CTX-33")
def what_may_not_be_called_under_another_strategy(lib: Library) -> Any:
    calls = across(lib, mirrored(lib))
    calls["update"] = lambda: calls["update_non_slot"]()
    with central(lib).scope():
        return [[name, attempt(call, says=(MIX,))] for name, call in calls.items()]


@scenario("CTX-A6", "CTX-20")
def a_replica_may_update(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)
    seen: list[Any] = []

    def add(each: Any) -> None:
        seen.append(state(lib))
        each.assign_add(2.0)

    strategy.run(lambda: strategy.extended.update(variable, add))
    return [seen, variable]


@scenario("CTX-A12", "CTX-34")
def colocation_by_context(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)

    def colocate() -> bool:
        return strategy.extended.colocate_vars_with(variable) is not None

    says = ('Need to be inside "with strategy.scope()"', MIX)
    outside = attempt(colocate, says=says)
    with strategy.scope():
        inside = colocate()
    with central(lib).scope():
        elsewhere = attempt(colocate, says=says)
    return [outside, inside, elsewhere, strategy.run(colocate)]


@scenario("CTX-A18", "CTX-44")
def variables_under_another_strategy(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            variable = lib.distribute.Variable(1.0)

        with mirrored(lib).scope():
            answers.append(
                [
                    attempt(variable.read_value, says=(MIX,)),
                    attempt(variable.__add__, 1.0, says=(MIX,)),
                    attempt(assigned, variable, says=(MIX,)),
                ]
            )
        assigned(variable)
        answers.append([variable.read_value()])
    return answers


@scenario("CTX-36", says=("all_gather",))
def a_replica_gathers_by_all_gather(lib: Library) -> Any:
    strategy = mirrored(lib)
    return strategy.run(lambda: strategy.gather(lib.tensor([1.0]), axis=0))


@scenario("CTX-A8", "CTX-A10", "CTX-A11", "CTX-33", "CTX-35")
def methods_of_the_first_version_by_context(lib: Library) -> Any:
    strategy = lib.v1.MirroredStrategy(cpus(2))
    calls: dict[str, Callable[[], Any]] = {
        "make_dataset_iterator": lambda: bool(
            strategy.make_dataset_iterator(lib.range(4).batch(2))
        ),
        "make_input_fn_iterator": lambda: bool(
            strategy.make_input_fn_iterator(lambda context: lib.range(4).batch(2))
        ),
        "experimental_run": lambda: strategy.experimental_run(lambda: 1),
        "run_steps": lambda: bool(
            strategy.extended.experimental_run_steps_on_iterator(
                lambda context, inputs: lib.tensor(0.0),
                strategy.make_dataset_iterator(lib.range(4).batch(2)),
            )
        ),
    }
    says = (MIX, "cross-replica context", "merge_call")
    in_replica: list[Any] = []

    def fn() -> None:
        if replica_id(lib) == 0:
            in_replica.extend(attempt(call, says=says) for call in calls.values())

    strategy.run(fn)
    with central(lib).scope():
        elsewhere = [attempt(call, says=says) for call in calls.values()]
    outside = [attempt(call, says=says) for call in calls.values()]
    return [list(calls), in_replica, elsewhere, outside]
