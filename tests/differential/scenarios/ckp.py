"""Checkpoints of clusters."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored


def named(lib: Library, strategy: Any, value: float, name: str = "v") -> Any:
    """Return a variable, by whose name ours is found in checkpoints."""
    with strategy.scope():
        return lib.distribute.Variable([value, value + 1.0], name=name)


@scenario("CKP-1")
def changes_after_a_checkpoint_are_undone(lib: Library) -> Any:
    with lib.served(2) as strategy:
        variables = {name: named(lib, strategy, 1.0, name) for name in ("a", "b")}
        saved = lib.save(variables)
        for variable in variables.values():
            variable.assign_add([5.0, 5.0])
        lib.restore(saved, variables)
        return [variable.read_value() for variable in variables.values()]


@scenario("CKP-1")
def a_checkpoint_may_be_saved_in_the_scope(lib: Library) -> Any:
    with lib.served(1) as strategy:
        variable = named(lib, strategy, 1.0)
        with strategy.scope():
            saved = lib.save({"v": variable})
            variable.assign([0.0, 0.0])
            lib.restore(saved, {"v": variable})
        return variable.read_value()


@scenario("CKP-3")
def servers_take_values_of_mirrored_variables(lib: Library) -> Any:
    saved = lib.save({"v": named(lib, mirrored(lib), 3.0)})
    with lib.served(2) as strategy:
        variable = named(lib, strategy, 0.0)
        lib.restore(saved, {"v": variable})
        return variable.read_value()


@scenario("CKP-3", "CKP-5")
def other_servers_take_values_of_those_before(lib: Library) -> Any:
    with lib.served(2) as strategy:
        saved = lib.save({"v": named(lib, strategy, 4.0)})
    with lib.served(3) as strategy:
        variable = named(lib, strategy, 0.0)
        lib.restore(saved, {"v": variable})
        return variable.read_value()


@scenario("CKP-3")
def mirrored_variables_take_values_of_servers(lib: Library) -> Any:
    with lib.served(1) as strategy:
        saved = lib.save({"v": named(lib, strategy, 6.0)})
        other = mirrored(lib)
        variable = named(lib, other, 0.0)
        lib.restore(saved, {"v": variable})
        return other.experimental_local_results(variable)


@scenario("CKP-3", "CKP-4")
def shards_are_put_together_in_another_way(lib: Library) -> Any:
    def table(strategy: Any, value: float) -> Any:
        rows = [[value + row] for row in range(7)]
        with strategy.scope():
            return lib.distribute.Variable(rows, name="t")

    fixed = lib.distribute.partitioners.FixedShardsPartitioner
    with lib.served(2, fixed(2)) as strategy:
        saved = lib.save({"t": table(strategy, 1.0)})
    with lib.served(3, fixed(3)) as strategy:
        restored = table(strategy, 0.0)
        lib.restore(saved, {"t": restored})
        return [len(restored.variables), lib.whole(restored)]
