"""How a process is told that a method has a new name."""

from __future__ import annotations

import warnings

import pytest

import stratagem
from stratagem import _deprecation, contrib


def test_a_process_is_told_once_of_each_spelling() -> None:
    _deprecation.warned.clear()
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            strategy.unwrap(1)
            strategy.experimental_initialize()
    assert [(str(each.message), each.filename) for each in caught] == [
        ("unwrap is deprecated; use experimental_local_results instead", __file__),
        (
            "experimental_initialize is deprecated; use nothing, as there is nothing "
            "to initialize, instead",
            __file__,
        ),
    ]


def test_where_warnings_are_errors_every_use_is_one() -> None:
    _deprecation.warned.clear()
    for _ in range(2):
        with pytest.raises(DeprecationWarning, match=r"use stratagem\.OneDeviceStr"):
            contrib.OneDeviceStrategy("CPU:0")


@pytest.mark.spec("STR-21")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_older_run_takes_its_arguments_from_any_iterable() -> None:
    strategy = stratagem.get_strategy()
    assert strategy.experimental_run_v2(
        lambda *xs, y: [*xs, y], range(2), {"y": 2}
    ) == [
        0,
        1,
        2,
    ]
