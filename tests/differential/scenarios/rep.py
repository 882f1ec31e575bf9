"""What a replica knows of itself."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.contexts import strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device


def looks(strategy: Any, look: Any) -> list[Any]:
    """Return what each replica sees."""
    seen: list[Any] = []
    strategy.run(lambda: seen.append(look()))
    return seen


@scenario("REP-1", says=("integer, a Tensor or None",))
def a_replica_number_is_no_text(lib: Library) -> Any:
    return lib.distribute.ReplicaContext(mirrored(lib), "0") is not None


@scenario("REP-2", core=(24,))
def numbers_are_scalars_made_anew(lib: Library) -> Any:
    def look() -> Any:
        replica = lib.distribute.get_replica_context()
        first = replica.replica_id_in_sync_group
        return [first, first is replica.replica_id_in_sync_group]

    default = lib.distribute.get_strategy()
    return [looks(each, look) for each in (default, *strategies(lib))]


@scenario("REP-2")
def the_number_of_the_default_replica_is_plain(lib: Library) -> Any:
    return lib.distribute.get_replica_context().replica_id_in_sync_group


@scenario("REP-3", "REP-4")
def a_replica_knows_its_strategy(lib: Library) -> Any:
    answers = []
    for strategy in (lib.distribute.get_strategy(), *strategies(lib)):

        def look(strategy: Any = strategy) -> Any:
            replica = lib.distribute.get_replica_context()
            return [replica.strategy is strategy, replica.num_replicas_in_sync]

        answers.append(looks(strategy, look))
    return answers


@scenario("REP-5")
def devices_of_replicas(lib: Library) -> Any:
    def look() -> Any:
        return lib.distribute.get_replica_context().devices

    default = lib.distribute.get_strategy()
    chosen = (default, one_device(lib), mirrored(lib), mirrored(lib, 1), central(lib))
    return [looks(each, look) for each in chosen]


@scenario("REP-5")
def devices_of_the_default_replica(lib: Library) -> Any:
    replica = lib.distribute.get_replica_context()
    outside = replica.devices
    with lib.device("/device:CPU:1"):
        return [outside, replica.devices]


@scenario("REP-6")
def merge_calls_take_keywords(lib: Library) -> Any:
    def merge(strategy: Any, value: Any, factor: int) -> Any:
        return value * factor

    def look() -> Any:
        merge_call = lib.distribute.get_replica_context().merge_call
        one = lib.tensor(1.5)
        return [merge_call(merge, (one,), {"factor": 2}), merge_call(merge, [one, 3])]

    return looks(one_device(lib), look)


@scenario("REP-10", "CTX-32")
def what_is_kept_of_a_replica(lib: Library) -> Any:
    kept = looks(mirrored(lib), lib.distribute.get_replica_context)[1]
    says = ("Mismatching tf.distribute.Strategy objects",)
    return [
        attempt(kept.merge_call, lambda strategy: None, says=says),
        attempt(lambda: kept.devices, says=says),
        kept.num_replicas_in_sync,
        kept.replica_id_in_sync_group,
    ]
