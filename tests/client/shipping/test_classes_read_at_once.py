"""Classes that the program does not have yet, read by several threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from stratagem._shipping.outcome_forms import PICKLED
from stratagem._shipping.pickling import read_by_program

_GRACE_SECONDS = 0.2
"""In which a value would be read that did not wait for the one before."""

between: list[Callable[[], None]] = []
"""What is done while a class has no attributes yet."""


def passed() -> int:
    while between:
        between.pop()()
    return 3


class Attribute:
    def __reduce__(self) -> Any:
        return passed, ()


def payload() -> bytes:
    """What a worker returns that has made a class of its own."""

    class Made:
        sides = Attribute()

    Made.__module__ = "__main__"
    return PICKLED.dump(Made())


def test_a_class_is_the_same_and_whole_for_all_threads_that_read_it() -> None:
    result = payload()
    # The class that was dumped here is not to be found any more.
    gc.collect()
    sides: list[int] = []
    kinds: list[type] = []

    def read() -> None:
        made = read_by_program(result)
        kinds.append(type(made))
        sides.append(made.sides)

    other = threading.Thread(target=read)

    def read_beside() -> None:
        other.start()
        other.join(_GRACE_SECONDS)

    between.append(read_beside)
    read()
    other.join()
    assert sides == [3, 3]
    assert kinds[0] is kinds[1]
