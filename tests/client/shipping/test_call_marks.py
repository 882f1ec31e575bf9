"""When a call travels as an earlier one did, and when it does not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import pytest
import torch

from stratagem._shipping.calls.call import Call
from stratagem._shipping.calls.call_marks import mark_of_call
from tests.client.shipping.coordination import by_value

Change = Callable[[], object]

settings: Any = {}
step_size: Any = 1


class Handled:
    """Has a handle."""


HANDLED = Handled()


def mark_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    call = Call(function, args, kwargs)
    return mark_of_call(call, lambda value: 7 if value is HANDLED else None)


def set_global(name: str, value: object) -> Change:
    return lambda: globals().__setitem__(name, value)


@by_value
def step(scale: float = 1.0) -> Any:
    return scale * step_size * settings.get("rate", 1)


def adder() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    """A function, and what changes the cell that it uses."""
    amount: Any = 1

    def change(value: Any) -> None:
        nonlocal amount
        amount = value

    return by_value(lambda: amount), change


@pytest.mark.parametrize(
    "value",
    [1, 0.5, "a", None, (1, "b"), [1], {"a": [2]}, torch.float32, math, len, list[int]],
    ids=repr,
)
def test_a_function_that_uses_the_same_has_the_same_mark(value: object) -> None:
    function, change = adder()
    change(value)
    assert mark_of(function) == mark_of(function)
    assert hash(mark_of(function)) == hash(mark_of(function))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (HANDLED, None),
        (math, sys),
        (torch.float32, torch.float64),
        (adder, twice := by_value(lambda value: 2 * value)),
        (twice, by_value(lambda value: 3 * value)),
    ],
)
def test_what_is_in_a_cell_changes_the_mark(before: object, after: object) -> None:
    function, change = adder()
    change(before)
    mark = mark_of(function)
    assert mark is not None
    change(after)
    assert mark_of(function) != mark


def test_what_changes_in_place_changes_the_mark() -> None:
    function, change = adder()
    weights, rows = torch.zeros(3), [1]
    change((weights, rows))
    marks = [mark_of(function)]
    weights[1] = 5
    marks.append(mark_of(function))
    rows.append(2)
    marks.append(mark_of(function))
    assert len(set(marks)) == 3


@pytest.mark.parametrize(
    "change",
    [
        set_global("step_size", 2),
        lambda: settings.update(rate=3),
        lambda: step.__setattr__("__defaults__", (2.0,)),
        lambda: step.__setattr__("__name__", "other"),
        lambda: step.__setattr__("note", "one"),
    ],
    ids=["global", "in place", "default", "name", "attribute"],
)
def test_what_a_function_refers_to_changes_the_mark(change: Change) -> None:
    before = mark_of(step)
    assert before is not None
    change()
    assert mark_of(step) != before


def test_arguments_change_the_mark() -> None:
    marks = {mark_of(step), mark_of(step, 1), mark_of(step, 2), mark_of(step, scale=1)}
    assert len(marks) == 4
    assert mark_of(step, HANDLED) == mark_of(step, HANDLED)


def test_which_parts_are_one_object_changes_the_mark() -> None:
    rows: list[int] = []
    assert mark_of(step, rows, rows) == mark_of(step, rows, rows)
    assert mark_of(step, rows, rows) != mark_of(step, rows, [])
    assert mark_of(step, rows, []) == mark_of(step, [], rows)


def test_functions_that_share_a_cell_are_other_than_ones_that_do_not() -> None:
    first, _ = adder()
    second, _ = adder()
    assert mark_of(first) == mark_of(second)
    assert mark_of(step, first, first) != mark_of(step, first, second)
    count = 0
    shared = [by_value(lambda: count) for _ in range(2)]
    assert mark_of(step, *shared) != mark_of(step, first, second)


def test_a_function_that_calls_itself_has_a_mark() -> None:
    def factorial(number: int) -> int:
        return number * factorial(number - 1) if number else 1

    assert mark_of(by_value(factorial)) == mark_of(factorial) is not None


def test_a_submodule_that_is_loaded_changes_the_mark() -> None:
    before = mark_of(step)
    sys.modules["math.more"] = ModuleType("math.more")
    try:
        assert mark_of(step) != before
    finally:
        del sys.modules["math.more"]


class Dynamic:
    """A class of the main program."""


Dynamic.__module__ = "__main__"


@pytest.mark.parametrize(
    "value",
    [Dynamic, Handled(), ModuleType("nowhere"), torch.zeros(100_000), {1, 2}],
    ids=["class", "object", "module", "large tensor", "set"],
)
def test_of_other_things_only_a_pickle_can_tell(value: object) -> None:
    assert mark_of(step, value) is None


def test_nothing_has_a_mark_while_modules_are_contained_in_pickles() -> None:
    cloudpickle.register_pickle_by_value(math)
    try:
        assert mark_of(step) is None
    finally:
        cloudpickle.unregister_pickle_by_value(math)
    assert mark_of(step) is not None


def test_the_name_of_a_file_belongs_to_the_mark() -> None:
    code = step.__code__.replace(co_filename="elsewhere.py")
    moved = FunctionType(code, step.__globals__, "step", step.__defaults__)
    moved.__dict__.update(step.__dict__)
    moved.__module__, moved.__annotations__ = step.__module__, step.__annotations__
    assert mark_of(moved) != mark_of(step)
