"""A program sees what its functions write and log."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import pytest

from stratagem._worker_client.link import WorkerLink, labelled
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.worker.links import Shown, connected, link_to, result


def shown_of(worker: WorkerServer, function: Callable[[], object]) -> Shown:
    shown: Shown = []
    with connected(worker, shown) as link:
        result(link, 1, function)
    return shown


def test_lines_arrive_whole_and_in_order(worker: WorkerServer) -> None:
    def speak() -> None:
        print("one", end=" ")
        print("line\nand half", end="")
        sys.stderr.write("loud\n")

    assert shown_of(worker, speak) == [
        ("stdout", "one line"),
        ("stderr", "loud"),
        ("stdout", "and half"),
    ]


def test_of_a_progress_bar_the_last_state_is_seen(worker: WorkerServer) -> None:
    shown = shown_of(worker, lambda: sys.stderr.write("\r10%\r50%\r100%"))
    assert shown == [("stderr", "100%")]


def test_records_of_the_log_arrive_with_their_level(worker: WorkerServer) -> None:
    log = logging.getLogger("tests.worker")

    def speak() -> None:
        # As in a program that has not set up its log.
        root = logging.getLogger()
        handlers, root.handlers = root.handlers, []
        log.error("%d of %d", 1, 2)
        log.debug("unseen")
        root.handlers = handlers

    assert shown_of(worker, speak) == [("ERROR", "1 of 2")]


def test_more_lines_than_fit_on_the_way_arrive_all(worker: WorkerServer) -> None:
    shown = shown_of(worker, lambda: print(*range(5000), sep="\n"))
    assert [int(text) for _, text in shown] == list(range(5000))


def test_what_others_write_meanwhile_stays_where_it_was(
    worker: WorkerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def speak() -> None:
        other = threading.Thread(target=print, args=("of another thread",))
        other.start()
        other.join()
        print("of the function")

    assert shown_of(worker, speak) == [("stdout", "of the function")]
    assert capsys.readouterr().out == "of another thread\n"


def test_functions_of_two_workers_do_not_mix() -> None:
    first, second = Shown(), Shown()
    with (
        WorkerServer(WorkerSettings(token=TOKEN)) as one,
        WorkerServer(WorkerSettings(token=TOKEN)) as two,
        connected(one, first) as left,
        connected(two, second) as right,
    ):
        run_together(left, right)
    assert first == [("stdout", "left")] * 3
    assert second == [("stdout", "right")] * 3


meeting = threading.Barrier(2)


def speak_in_turn(word: str) -> None:
    for _ in range(3):
        meeting.wait(30)
        print(word)


def run_together(left: WorkerLink, right: WorkerLink) -> None:
    other = threading.Thread(target=result, args=(right, 1, lambda: speak_in_turn("right")))
    other.start()
    result(left, 1, lambda: speak_in_turn("left"))
    other.join()


def test_the_streams_of_the_process_are_as_before_afterwards(
    worker: WorkerServer,
) -> None:
    before = sys.stdout, sys.stderr, logging.lastResort
    shown_of(worker, lambda: print("word"))
    assert (sys.stdout, sys.stderr, logging.lastResort) == before


def test_a_link_shows_lines_behind_the_name_of_the_worker(
    worker: WorkerServer, capsys: pytest.CaptureFixture[str]
) -> None:
    link = link_to(worker.address)
    link._show = labelled(link.task)
    link.connect()
    result(link, 1, lambda: print("word"))
    link.close()
    assert capsys.readouterr().out == "/job:worker/task:0 | word\n"


def test_the_log_of_a_worker_is_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    labelled("/job:worker/task:1")("WARNING", "careful")
    assert caplog.record_tuples == [
        ("stratagem.worker", logging.WARNING, "/job:worker/task:1 | careful")
    ]
