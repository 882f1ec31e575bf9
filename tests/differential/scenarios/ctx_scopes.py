"""Scopes: entering, nesting, leaving, and the one without a `with`."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.contexts import MIX, state, strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored

NESTING = "scope nesting error"


@scenario("CTX-2", "CTX-10", core=(2,))
def a_scope_makes_its_strategy_current(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope() as given:
            created = lib.distribute.Variable(1.0)
            owned = strategy.extended.variable_created_in_scope(created)
            same = given is strategy is lib.distribute.get_strategy()
            answers.append([state(lib), same, owned])
        answers.append([state(lib)])
    return answers


@scenario("CTX-11", "CTX-12", "CTX-33", core=(8,))
def scopes_of_one_strategy_nest_in_any_order(lib: Library) -> Any:
    strategy, other = mirrored(lib), mirrored(lib)
    first, second, foreign = strategy.scope(), strategy.scope(), other.scope()
    with first:
        with second:
            with first:
                inner = state(lib)
            middle = state(lib)
        refused = attempt(foreign.__enter__, says=(MIX,))
        outer = state(lib)
    between = state(lib)
    with second:
        return [inner, middle, refused, outer, between, state(lib)]


@scenario("CTX-13", core=(3,))
def a_device_scope_must_not_outlast_a_scope(lib: Library) -> Any:
    strategy = mirrored(lib)
    strategy.extended._default_device = "/device:CPU:1"
    scope = strategy.scope()
    scope.__enter__()
    with lib.device("/device:CPU:0"):
        refused = attempt(scope.__exit__, None, None, None, says=(f"Device {NESTING}",))
    inside = state(lib)
    scope.__exit__(None, None, None)
    return [refused, inside, state(lib)]


@scenario("CTX-13")
def a_creator_scope_must_not_outlast_a_scope(lib: Library) -> Any:
    scope = mirrored(lib).scope()
    scope.__enter__()
    says = (f"Variable creator {NESTING}",)
    with lib.creator_scope(lambda following, **kwargs: following(**kwargs)):
        refused = attempt(scope.__exit__, None, None, None, says=says)
    scope.__exit__(None, None, None)
    return [refused, state(lib)]


@scenario("CTX-13")
def errors_come_out_of_scopes(lib: Library) -> Any:
    def fail() -> None:
        with mirrored(lib).scope():
            raise KeyError("trouble")

    return [attempt(fail, says=("trouble",)), state(lib)]


@scenario("CTX-14", "CTX-15", core=(10,))
def the_scope_of_the_default_strategy_is_next_to_nothing(lib: Library) -> Any:
    default, other = lib.distribute.get_strategy(), mirrored(lib)

    def create() -> bool:
        return lib.distribute.Variable(1.0) is not None

    with default.scope(), default.scope():
        states = [state(lib), create()]
        with other.scope():
            refused = attempt(create, says=(MIX,))
        states += [state(lib), create()]
    return [states, refused, state(lib)]


@scenario("CTX-14", says=("Must not nest",))
def the_scope_of_the_default_strategy_is_the_outermost(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    with mirrored(lib).scope(), default.scope():
        return None


@scenario("CTX-16", core=(6,))
def the_strategy_set_last_is_current(lib: Library) -> Any:
    one, other = mirrored(lib), central(lib)
    answers: list[Any] = []
    for strategy in (one, other, other, None):
        lib.distribute.experimental_set_strategy(strategy)
        current = lib.distribute.get_strategy()
        answers.append([current is one, current is other, state(lib)])
    return answers


@scenario("CTX-16", core=(7,))
def no_strategy_is_set_inside_of_a_scope(lib: Library) -> Any:
    strategy, says = mirrored(lib), ("Must not be called inside",)
    set_strategy = lib.distribute.experimental_set_strategy
    with strategy.scope():
        refused = [
            attempt(set_strategy, given, says=says) for given in (mirrored(lib), strategy, None)
        ]
    return [refused, state(lib)]


@scenario("CTX-13", "CTX-16")
def a_set_strategy_is_replaced_after_what_was_opened_later(lib: Library) -> Any:
    set_strategy = lib.distribute.experimental_set_strategy
    set_strategy(mirrored(lib))
    says = (f"Variable creator {NESTING}", "`with`")
    with lib.creator_scope(lambda following, **kwargs: following(**kwargs)):
        refused = attempt(set_strategy, None, says=says)
        inside = state(lib)
    set_strategy(None)
    return [refused, inside, state(lib)]


@scenario("CTX-16")
def the_default_scope_ends_before_a_strategy_is_set(lib: Library) -> Any:
    default, set_strategy = (
        lib.distribute.get_strategy(),
        lib.distribute.experimental_set_strategy,
    )
    scope = default.scope()
    scope.__enter__()
    set_strategy(mirrored(lib))
    says = (f"Variable creator {NESTING}",)
    refused = attempt(scope.__exit__, None, None, None, says=says)
    set_strategy(None)
    attempt(scope.__exit__, None, None, None)
    return [refused, state(lib)]
