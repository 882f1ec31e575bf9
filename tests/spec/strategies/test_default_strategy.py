"""The strategy that is in charge where the user chose none."""

from __future__ import annotations

import pytest

import stratagem
from tests.spec.contexts.contexts import CROSS, state

spec = pytest.mark.spec


@pytest.fixture
def default() -> stratagem.Strategy:
    return stratagem.get_strategy()


@spec("DEF-1")
def test_it_is_in_charge_outside_of_scopes(default: stratagem.Strategy) -> None:
    assert stratagem.get_strategy() is default
    assert default.run(stratagem.get_strategy) is default
    assert default.num_replicas_in_sync == 1
    with pytest.raises(RuntimeError, match="Should only create a single instance"):
        type(default)()


@spec("DEF-9")
def test_update_calls_the_function_with_the_variable(
    default: stratagem.Strategy,
) -> None:
    variable = stratagem.Variable(1.0)
    update = default.extended.update
    assert update(variable, lambda v, x: v is variable and x, (5,)) == 5
    assert update(variable, lambda v: {"a": 1}, group=False) == {"a": (1,)}
    assert update(variable, lambda v: state()) == (False, *CROSS[1:])
    update(variable, lambda v, *, by: v.assign_add(by), kwargs={"by": 2.0})
    assert variable.numpy() == 3.0
