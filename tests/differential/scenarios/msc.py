"""Loops of several steps behind one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import cpus, replica_id

Step = Callable[[Any, Any], Any]


def strategies(lib: Library) -> list[Any]:
    """Return those that have such loops, of two replicas and of one."""
    return [lib.v1.MirroredStrategy(cpus(2)), lib.v1.OneDeviceStrategy("CPU:0")]


def loop(lib: Library, strategy: Any, step: Step, steps: int = 1, initial: Any = None) -> Any:
    """Run steps over [0, 1], [2, 3], [4, 5], [6, 7]; return the context."""
    iterator = strategy.make_dataset_iterator(lib.range(8).batch(2))
    run = strategy.extended.experimental_run_steps_on_iterator
    return run(step, iterator, steps, initial)


@scenario("MSC-2", core=(186,))
def a_step_gets_an_input(lib: Library) -> Any:
    seen = []
    for strategy in strategies(lib):
        dataset = lib.dataset([1.0, 1.0, 1.0, 1.0]).batch(2)
        iterator = strategy.make_dataset_iterator(dataset)
        strategy.extended.experimental_run_steps_on_iterator(
            lambda _, inputs: seen.append(inputs), iterator
        )
    return seen


@scenario("MSC-2")
def a_pair_is_one_input(lib: Library) -> Any:
    seen: list[Any] = []
    for strategy in strategies(lib):
        dataset = lib.dataset([(1.0, 2), (3.0, 4)]).batch(2)
        iterator = strategy.make_dataset_iterator(dataset)
        strategy.extended.experimental_run_steps_on_iterator(
            lambda _, *inputs: seen.append([len(inputs), list(inputs[0])]), iterator
        )
    return seen


@scenario("MSC-3", "MSC-11")
def a_loop_without_steps_has_no_outputs(lib: Library) -> Any:
    def step(context: Any, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)

    contexts = [loop(lib, strategy, step, 0) for strategy in strategies(lib)]
    return [
        [context.run_op, context.last_step_outputs, context.non_tensor_outputs]
        for context in contexts
    ]


@scenario("MSC-4", "MSC-8")
def outputs_between_replicas_are_kept_or_reduced(lib: Library) -> Any:
    def step(context: Any, inputs: Any) -> None:
        context.set_last_step_output("kept", inputs)
        context.set_last_step_output("sum", inputs, lib.distribute.ReduceOp.SUM)
        context.set_last_step_output("mean", inputs, "MEAN")
        context.set_non_tensor_output("text", "as it is")

    answers = []
    for strategy in strategies(lib):
        zeros = [lib.tensor([0], "int64")] * (2 + strategy.num_replicas_in_sync)
        context = loop(lib, strategy, step, 3, zeros)
        answers.append([context.last_step_outputs, context.non_tensor_outputs])
    return answers


@scenario("MSC-5", "MSC-7", "MSC-8", core=(187,))
def a_trained_variable_and_its_loss(lib: Library) -> Any:
    def trained(strategy: Any) -> Any:
        with strategy.scope():
            mean = lib.distribute.VariableAggregation.MEAN
            v = lib.distribute.Variable(10.0, aggregation=mean)

        def replica(context: Any, inputs: Any) -> None:
            error = v.read_value() - float(lib.total(inputs))
            context.set_last_step_output("loss", error * error, "MEAN")
            context.set_non_tensor_output("replica", replica_id(lib))
            v.assign_sub(error * 0.2)

        def step(context: Any, inputs: Any) -> None:
            strategy.extended.call_for_each_replica(replica, args=(context, inputs))
            context.set_last_step_output("input", inputs)

        zeros = [lib.tensor(0.0)] * (1 + strategy.num_replicas_in_sync)
        context = loop(lib, strategy, step, 3, zeros)
        outputs = context.last_step_outputs
        return outputs, context.non_tensor_outputs, v.read_value()

    return [trained(strategy) for strategy in strategies(lib)]


@scenario("MSC-5")
def replicas_say_how_their_outputs_are_reduced(lib: Library) -> Any:
    def tried(strategy: Any) -> Any:
        def step(context: Any, inputs: Any) -> None:
            strategy.extended.call_for_each_replica(
                lambda x: context.set_last_step_output("out", x), args=(inputs,)
            )

        return attempt(lambda: loop(lib, strategy, step))

    return [tried(strategy) for strategy in strategies(lib)]


@scenario("ODD-21")
def initial_values_may_be_left_out(lib: Library) -> Any:
    def step(context: Any, inputs: Any) -> None:
        context.set_last_step_output("sum", inputs, "SUM")

    return loop(lib, strategies(lib)[0], step).last_step_outputs


@scenario("MSC-10", says=("have the same nested structure",))
def initial_values_are_as_many_as_outputs(lib: Library) -> Any:
    def step(context: Any, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)

    loop(lib, strategies(lib)[0], step, 2, {"inputs": lib.tensor([0], "int64")})


@scenario("MSC-12")
def data_end_inside_of_a_loop(lib: Library) -> Any:
    return [
        attempt(loop, lib, strategy, lambda context, inputs: None, 9)
        for strategy in strategies(lib)
    ]


@scenario("MSC-13", "CS-6", says=("must be implemented in descendants",))
def one_copy_of_variables_has_no_loops(lib: Library) -> Any:
    strategy = lib.v1.CentralStorageStrategy(cpus(2), "CPU:0")
    loop(lib, strategy, lambda context, inputs: None)


@scenario("CTX-A8", "EXT-19", says=("requires being in cross-replica context",))
def a_replica_runs_no_loop(lib: Library) -> Any:
    strategy = strategies(lib)[0]
    strategy.extended.call_for_each_replica(
        lambda: loop(lib, strategy, lambda context, inputs: None)
    )
