"""How deep the classes of strategies are stacked: see docs/architecture/client.md."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import stratagem
from stratagem import StrategyExtended

MOST_CLASSES = 5
MOST_DEFINITIONS = 2
"""Of a hook: the base, which says what it is for, and one class that overrides it."""

MOST_CONSTRUCTORS = 3
"""The base, what several strategies share, and the strategy's own."""


def modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def extended_classes(
    base: type[StrategyExtended] = StrategyExtended,
) -> Iterator[type[StrategyExtended]]:
    for each in base.__subclasses__():
        if is_ours(each):
            yield each
            yield from extended_classes(each)


def is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "stratagem"


def own_classes(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if is_ours(each)]


def definitions(cls: type) -> dict[str, list[str]]:
    """Return which classes define each method or property, by its name."""
    found: dict[str, list[str]] = {}
    for each in own_classes(cls):
        for name, member in vars(each).items():
            if inspect.isroutine(member) or isinstance(member, property):
                found.setdefault(name, []).append(each.__name__)
    return found


@pytest.fixture(scope="module", autouse=True)
def everything_imported() -> None:
    assert any(module.__name__ == "stratagem._tpu.remote" for module in modules(stratagem))


def test_no_strategy_is_a_tower_of_classes() -> None:
    towers = {each.__name__: own_classes(each) for each in extended_classes()}
    assert {"MirroredExtended", "CoresExtended"} < set(towers)
    assert not {name for name, rungs in towers.items() if len(rungs) > MOST_CLASSES}


def test_a_hook_is_overridden_once() -> None:
    hooks = {
        f"{each.__name__}.{name}": classes
        for each in extended_classes()
        for name, classes in definitions(each).items()
        if name != "__init__"
    }
    assert hooks["MirroredExtended._reduce_to"] == ["CopiesExtended", "StrategyHooks"]
    assert {
        name: classes for name, classes in hooks.items() if len(classes) > MOST_DEFINITIONS
    } == {}


def test_a_strategy_is_made_by_few_constructors() -> None:
    assert {
        each.__name__: definitions(each)["__init__"]
        for each in extended_classes()
        if len(definitions(each)["__init__"]) > MOST_CONSTRUCTORS
    } == {}
