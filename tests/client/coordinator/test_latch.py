"""Something that happens once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stratagem._coordinator.closure import Latch


def test_all_who_wait_go_on_once_it_has_happened() -> None:
    latch = Latch()
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(latch.wait) for _ in range(3)]
        assert not latch.is_set()
        assert not any(wait.done() for wait in waits)
        latch.set()
        for wait in waits:
            wait.result(60)
    assert latch.is_set()


def test_it_may_happen_again_and_be_waited_for_again() -> None:
    latch = Latch()
    for _ in range(2):
        latch.set()
        latch.wait()
    assert latch.is_set()
