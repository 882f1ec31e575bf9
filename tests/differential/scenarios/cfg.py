"""Hooks that strategies have into session configurations."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import cpus


def strategies(lib: Library) -> list[Any]:
    """Return the strategies whose hooks differ."""
    return [
        lib.v1.MirroredStrategy(cpus(2)),
        lib.v1.CentralStorageStrategy(cpus(2), "CPU:0"),
        lib.v1.OneDeviceStrategy("CPU:0"),
    ]


def config(lib: Library) -> Any:
    """Return a configuration with a device filter."""
    return lib.v1.ConfigProto(device_filters=["/job:ps"])


def parts(config: Any) -> Any:
    """Return the fields that strategies change."""
    return [config.isolate_session_state, list(config.device_filters)]


@scenario("CFG-2", "MS-14")
def a_changed_copy_is_returned(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        given = config(lib)
        answers.append([parts(strategy.update_config_proto(given)), parts(given)])
    return answers


@scenario("CFG-2")
def the_default_strategy_copies(lib: Library) -> Any:
    given = config(lib)
    copy = lib.v1.get_strategy().update_config_proto(given)
    return [copy is given, parts(copy)]


@scenario("CFG-1")
def configure_changes_what_it_is_given(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        given = config(lib)
        answers.append([strategy.configure(session_config=given), parts(given)])
    return answers


@scenario("CFG-1")
def configure_may_be_given_nothing(lib: Library) -> Any:
    return [each.configure() for each in strategies(lib)]


@scenario("CFG-1")
def the_default_strategy_ignores_configuration(lib: Library) -> Any:
    given = config(lib)
    answer = lib.v1.get_strategy().configure(session_config=given)
    return [answer, parts(given)]
