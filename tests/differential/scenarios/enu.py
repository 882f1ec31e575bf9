"""Enumerations and small value types."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


@scenario("ENU-1")
def reduce_op_has_two_members(lib: Library) -> Any:
    return [(op.name, op.value) for op in lib.distribute.ReduceOp]


@scenario("ENU-2")
def reduce_op_from_an_aggregation(lib: Library) -> Any:
    convert = lib.distribute.ReduceOp.from_variable_aggregation
    return [
        attempt(convert, aggregation, says=("Could not convert from",))
        for aggregation in lib.distribute.VariableAggregation
    ]


@scenario("ENU-3", "ENU-4")
def enumerations_of_variables(lib: Library) -> Any:
    enums = lib.distribute.VariableAggregation, lib.distribute.VariableSynchronization
    return [{each.name: each.value for each in enum} for enum in enums]


@scenario("ENU-8", says=("must be >=0",))
def bytes_per_pack_cannot_be_negative(lib: Library) -> Any:
    return lib.distribute.CommunicationOptions(bytes_per_pack=-1)


@scenario("ENU-8")
def an_implementation_is_named_in_any_case(lib: Library) -> Any:
    def implementation(given: Any) -> str:
        options = lib.distribute.CommunicationOptions(implementation=given)
        return str(options.implementation.name)

    return [attempt(implementation, each) for each in ("auto", "Nccl", "RING", "other", 3)]


@scenario("ENU-12", core=(20, 22))
def an_input_context_tells_about_its_pipeline(lib: Library) -> Any:
    contexts = lib.distribute.InputContext(), lib.distribute.InputContext(3, 1, 6)
    return [
        (
            each.num_input_pipelines,
            each.input_pipeline_id,
            each.num_replicas_in_sync,
            str(each),
        )
        for each in contexts
    ]


@scenario("ENU-12")
def an_input_context_cannot_be_changed(lib: Library) -> Any:
    context = lib.distribute.InputContext()
    return attempt(setattr, context, "num_input_pipelines", 2) is not None


@scenario("ENU-13", core=(21,))
def a_global_batch_is_divided_by_the_replicas(lib: Library) -> Any:
    context = lib.distribute.InputContext(num_replicas_in_sync=6)
    divide = context.get_per_replica_batch_size
    return [divide(12), attempt(divide, 13, says=("not divisible", "13", "6"))]


@scenario("ENU-14")
def a_value_context_tells_about_its_replica(lib: Library) -> Any:
    context = lib.distribute.ValueContext(1, 4)
    numbers = context.replica_id_in_sync_group, context.num_replicas_in_sync
    return [numbers, str(context), str(lib.distribute.ValueContext())]


@scenario("ENU-10", "ENU-11")
def options_have_defaults(lib: Library) -> Any:
    run, input_ = lib.distribute.RunOptions(), lib.distribute.InputOptions()
    return [
        run.experimental_enable_dynamic_batch_size,
        run.experimental_bucketizing_dynamic_shape,
        run.experimental_xla_options,
        input_.experimental_fetch_to_device,
        input_.experimental_replication_mode,
        input_.experimental_place_dataset_on_device,
        input_.experimental_per_replica_buffer_size,
    ]


@scenario("ENU-5", "ENU-6")
def enumerations_of_input(lib: Library) -> Any:
    modes = lib.distribute.InputReplicationMode
    policies = lib.distribute.AutoShardPolicy
    return [
        [mode.name for mode in modes],
        {policy.name: int(policy) for policy in policies},
    ]
