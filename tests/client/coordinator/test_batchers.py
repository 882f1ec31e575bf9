"""Messages to workers that wait for those that follow."""

from __future__ import annotations

import threading
from functools import partial

from stratagem._worker_client.wire import Batcher, Batchers
from tests.waiting import eventually

PAUSE = 1.0
MOMENT = 0.0001


def batcher() -> Batcher:
    return Batcher(lambda: None)


def test_a_message_after_a_pause_is_sent_at_once() -> None:
    one = batcher()
    assert not one.keeps(PAUSE)
    one.flushed(PAUSE)
    assert not one.keeps(2 * PAUSE)


def test_a_message_after_the_program_has_waited_is_sent_at_once() -> None:
    one = batcher()
    one.flushed(PAUSE)
    one.rest()
    assert not one.keeps(PAUSE + MOMENT)


def test_a_message_that_follows_another_waits() -> None:
    one = batcher()
    one.flushed(PAUSE)
    assert one.keeps(PAUSE + MOMENT)
    assert one.keeps(PAUSE + 2 * MOMENT)


def test_no_message_waits_for_long() -> None:
    one = batcher()
    one.flushed(PAUSE)
    assert one.keeps(PAUSE + MOMENT)
    assert not one.keeps(2 * PAUSE)


def test_not_many_messages_wait() -> None:
    one = batcher()
    one.flushed(PAUSE)
    kept = [one.keeps(PAUSE) for _ in range(100)]
    assert kept.index(False) < 64


def test_what_is_sent_waits_no_more() -> None:
    one = batcher()
    one.flushed(PAUSE)
    assert one.keeps(PAUSE)
    one.flushed(PAUSE + MOMENT)
    assert not one.keeps(2 * PAUSE)


class Patient(Batcher):
    """Keeps whatever it may, and counts how often it is flushed."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.flushes = 0

    def _count(self) -> None:
        self.flushes += 1

    def keeps(self, now: float) -> bool:
        return True


def test_nothing_waits_that_the_program_does_not_schedule() -> None:
    assert not Batchers().keep(Patient())


def test_all_is_sent_when_the_program_waits() -> None:
    batchers, wires = Batchers(), [Patient(), Patient()]
    with batchers:
        assert all(map(batchers.keep, wires))
    batchers.hurry()
    assert [wire.flushes for wire in wires] == [1, 1]
    batchers.hurry()
    assert [wire.flushes for wire in wires] == [1, 1]


def test_what_waits_is_sent_though_the_program_goes_on() -> None:
    batchers, wire = Batchers(), Patient()
    batchers.start()
    try:
        with batchers:
            assert batchers.keep(wire)
        eventually(lambda: wire.flushes == 1)
        with batchers:
            assert batchers.keep(wire)
        eventually(lambda: wire.flushes == 2)
    finally:
        batchers.close()


def test_a_wire_that_fails_keeps_nothing_back_of_others() -> None:
    batchers, wire, failing = Batchers(), Patient(), Patient()

    def fail() -> None:
        raise ZeroDivisionError

    failing.flush = fail
    batchers.start()
    try:
        for _ in range(2):
            flushes = wire.flushes
            with batchers:
                assert batchers.keep(failing)
                assert batchers.keep(wire)
            eventually(partial(_exceeds, wire, flushes))
    finally:
        batchers.close()


def _exceeds(wire: Patient, flushes: int) -> bool:
    return wire.flushes > flushes


def test_its_thread_ends() -> None:
    before = threading.active_count()
    batchers = Batchers()
    batchers.start()
    batchers.close()
    eventually(lambda: threading.active_count() <= before)
