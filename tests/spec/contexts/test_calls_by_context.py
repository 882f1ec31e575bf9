"""What may be called in which state of a thread.

Each row is a method, and what comes of calling it in the default context, in the scope of its
strategy, in that of another strategy, in a replica and in an update.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ConfigProto, MirroredStrategy, PerReplica, Strategy, Variable
from tests.client.two_replicas import TwoReplicas, shared

pytestmark = pytest.mark.usefixtures("four_cpus")

Call = Callable[[Strategy, Variable], Any]

FRAGMENTS = {
    "mix": "Mixing different tf.distribute.Strategy objects",
    "cross": "requires being in cross-replica context.*merge_call",
    "gather": "only works in cross-replica context.*all_gather",
    "need": 'Need to be inside "with strategy.scope',
    "rep": "Need to be inside `call_for_each_replica|Mismatching",
}

ACROSS = ("ok", "ok", "mix", "cross", "ok")
ANYWHERE = ("ok",) * 5


def outcome(call: Callable[[], Any]) -> str:
    """Return the word for the error of a call, "ok" without one."""
    try:
        call()
    except RuntimeError as error:
        for word, fragment in FRAGMENTS.items():
            if re.search(fragment, str(error)):
                return word
        raise
    return "ok"


def outcomes(strategy: Strategy, variable: Variable, call: Callable[[], Any]) -> tuple[str, ...]:
    """Return what comes of a call in each state."""
    default = outcome(call)
    with strategy.scope():
        cross = outcome(call)
    with TwoReplicas().scope():
        other = outcome(call)
    replica = strategy.run(lambda: outcome(call))
    update = strategy.extended.update(variable, lambda v: [outcome(call)], group=False)
    return default, cross, other, replica, update[0][0]


def row(call: Call, expected: tuple[str, ...], *ids: str) -> Any:
    return pytest.param(call, expected, marks=pytest.mark.spec(*ids))


def within(scope: Any) -> None:
    """Enter and leave a scope."""
    with scope:
        pass


def dataset() -> list[torch.Tensor]:
    return [torch.ones(2)]


ROWS = [
    row(lambda s, v: within(s.scope()), ACROSS, "CTX-A1", "CTX-33", "CTX-35"),
    row(lambda s, v: s.run(int), ACROSS, "CTX-A2", "CTX-17", "CTX-33", "CTX-35"),
    row(lambda s, v: s.extended.call_for_each_replica(int), ACROSS, "CTX-A2"),
    row(lambda s, v: s.reduce("mean", torch.ones(2)), ACROSS, "CTX-A3", "CTX-33"),
    row(lambda s, v: s.reduce("mean", torch.ones(2), axis=0), ACROSS, "CTX-A3"),
    row(
        lambda s, v: s.gather(torch.ones(1), axis=0),
        ("ok", "ok", "mix", "gather", "ok"),
        "CTX-A4",
        "CTX-36",
    ),
    row(
        lambda s, v: s.extended.reduce_to("mean", torch.ones(1), "CPU:0"),
        ACROSS,
        "CTX-A5",
    ),
    row(
        lambda s, v: s.extended.batch_reduce_to("mean", [(torch.ones(1), "CPU:0")]),
        ACROSS,
        "CTX-A5",
    ),
    row(
        lambda s, v: s.extended.broadcast_to(torch.ones(1), "CPU:0"),
        ACROSS,
        "CTX-A5",
    ),
    row(
        lambda s, v: s.extended.update(v, lambda each: None),
        ("ok", "ok", "mix", "ok", "ok"),
        "CTX-A6",
    ),
    row(
        lambda s, v: s.extended.update_non_slot(s.extended.non_slot_devices([v]), lambda: None),
        ACROSS,
        "CTX-A7",
    ),
    row(
        lambda s, v: s.extended.experimental_run_steps_on_iterator(
            lambda context, value: None, s.make_dataset_iterator(dataset())
        ),
        ACROSS,
        "CTX-A8",
    ),
    row(
        lambda s, v: s.extended.experimental_make_numpy_dataset(torch.ones(2).numpy()),
        ACROSS,
        "CTX-A9",
    ),
    row(lambda s, v: s.make_dataset_iterator(dataset()), ANYWHERE, "CTX-A10"),
    row(lambda s, v: s.experimental_distribute_dataset(dataset()), ANYWHERE, "CTX-A10"),
    row(
        lambda s, v: s.distribute_datasets_from_function(lambda context: dataset()),
        ANYWHERE,
        "CTX-A10",
    ),
    row(
        lambda s, v: s.experimental_distribute_values_from_function(lambda context: 1),
        ANYWHERE,
        "CTX-A10",
    ),
    row(
        lambda s, v: s.make_input_fn_iterator(lambda context: dataset()),
        ACROSS,
        "CTX-A11",
    ),
    row(lambda s, v: s.experimental_run(int), ACROSS, "CTX-A11"),
    row(
        lambda s, v: within(s.extended.colocate_vars_with(v)),
        ("need", "ok", "mix", "ok", "ok"),
        "CTX-A12",
        "CTX-34",
    ),
    row(
        lambda s, v: s.experimental_local_results(PerReplica((1, 2))),
        ANYWHERE,
        "CTX-A13",
    ),
    row(lambda s, v: s.unwrap(PerReplica((1, 2))), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.group(1), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.num_replicas_in_sync, ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.update_config_proto(ConfigProto()), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.configure(ConfigProto()), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.extended.value_container(v), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.extended.non_slot_devices([v]), ANYWHERE, "CTX-A13"),
    row(lambda s, v: s.extended.variable_created_in_scope(v), ANYWHERE, "CTX-A13"),
    row(
        lambda s, v: (s.extended.worker_devices, s.extended.parameter_devices),
        ANYWHERE,
        "CTX-A13",
    ),
]


@pytest.mark.parametrize(("call", "expected"), ROWS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_methods_of_strategies(call: Call, expected: tuple[str, ...]) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    variable = shared(strategy, 1.0)
    found = outcomes(strategy, variable, lambda: call(strategy, variable))
    assert found == expected
    assert not stratagem.in_cross_replica_context()


def kept_replica(strategy: Strategy) -> stratagem.ReplicaContext:
    """Return the context of a replica that has ended."""
    replicas: list[stratagem.ReplicaContext] = []
    strategy.run(lambda: replicas.append(stratagem.get_replica_context()))  # type: ignore[arg-type]
    return replicas[0]


def merge(replica: stratagem.ReplicaContext) -> None:
    replica.merge_call(lambda strategy: None)


def devices(replica: stratagem.ReplicaContext) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replica.devices


@pytest.mark.spec("CTX-A14")
@pytest.mark.parametrize("member", [merge, devices])
def test_only_the_current_replica_context_merges(
    member: Callable[[stratagem.ReplicaContext], Any],
) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    variable, default = shared(strategy, 1.0), stratagem.get_replica_context()
    assert default is not None
    found = outcomes(strategy, variable, lambda: member(default))
    assert found == ("ok", "rep", "rep", "rep", "rep")
    ended = kept_replica(strategy)
    found = outcomes(strategy, variable, lambda: member(ended))
    assert found == ("rep",) * 5

    def current() -> None:
        replica = stratagem.get_replica_context()
        assert replica is not None
        member(replica)

    assert strategy.run(lambda: outcome(current)) == "ok"


@pytest.mark.parametrize(
    "member",
    [
        pytest.param("strategy", marks=pytest.mark.spec("CTX-A15")),
        pytest.param("num_replicas_in_sync", marks=pytest.mark.spec("CTX-A15")),
        pytest.param("replica_id_in_sync_group", marks=pytest.mark.spec("CTX-A16")),
    ],
)
def test_replica_contexts_can_be_looked_at_anywhere(member: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    ended = kept_replica(strategy)
    expected = {
        "strategy": strategy,
        "num_replicas_in_sync": 2,
        "replica_id_in_sync_group": 0,
    }[member]

    def look() -> None:
        assert getattr(ended, member) == expected

    assert outcomes(strategy, shared(strategy, 1.0), look) == ANYWHERE


@pytest.mark.spec("CTX-A17")
def test_variables_belong_to_the_strategy_in_charge() -> None:
    strategy, other = MirroredStrategy(["CPU:0", "CPU:1"]), TwoReplicas()
    outer = shared(strategy, 1.0)

    def owner() -> object:
        return stratagem.Variable(1.0).distribute_strategy

    assert owner() is None
    with strategy.scope():
        assert owner() is strategy
    with other.scope():
        assert owner() is other
    assert strategy.run(owner) is strategy
    (owners,) = strategy.extended.update(outer, lambda v: [owner()], group=False)
    assert owners == (strategy,)


@pytest.mark.spec("CTX-A18")
@pytest.mark.parametrize(
    ("member", "elsewhere"),
    [("read_value", "mix"), ("assign", "mix"), ("__add__", "ok")],
)
def test_variables_are_used_under_their_own_strategy(member: str, elsewhere: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = Variable(1.0, aggregation=stratagem.VariableAggregation.MEAN)
    args = () if member == "read_value" else (2.0,)
    found = outcomes(strategy, variable, lambda: getattr(variable, member)(*args))
    assert found == ("ok", "ok", elsewhere, "ok", "ok")
