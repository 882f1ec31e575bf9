"""Lines of other processes never tear the main program's open line apart."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from io import FileIO

import pytest

from stratagem_deploy.output import Copied, Screen

Opened = tuple[Screen, Callable[[str], bool]]


def opened(reader: int, writer: int) -> Iterator[Opened]:
    with (
        open(reader, "rb", buffering=0) as shown,
        open(writer, "w", encoding="utf-8") as stream,
    ):
        yield Screen(stream), lambda text: _next(shown, len(text)) == text


def _next(shown: FileIO, size: int) -> str:
    data = b""
    while len(data) < size:
        data += shown.read(size - len(data)) or b""
    return data.decode()


@pytest.fixture
def file() -> Iterator[Opened]:
    """A screen that is a pipe, and whether it shows a text next."""
    yield from opened(*os.pipe())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """A screen that is a terminal without colours, and whether it shows a text next."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    reader, writer = pty.openpty()
    tty.setraw(writer)
    yield from opened(reader, writer)


def test_a_line_stands_behind_the_name_of_its_process(file: Opened) -> None:
    screen, shows = file
    screen.labelled("worker:1", 1)("step [bold]1[/bold] of 3")
    assert shows("worker:1 | step [bold]1[/bold] of 3\n")


def test_a_long_line_stays_one_line(file: Opened) -> None:
    screen, shows = file
    screen.labelled("ps:0", 0)("x" * 500)
    assert shows(f"ps:0 | {'x' * 500}\n")


def test_in_a_file_an_open_line_is_ended_first(file: Opened) -> None:
    screen, shows = file
    screen.copy(b"\r 50%")
    screen.labelled("ps:0", 0)("lease ended")
    assert shows("\r 50%\nps:0 | lease ended\n")


def test_on_a_terminal_a_progress_bar_is_put_below_the_line(terminal: Opened) -> None:
    screen, shows = terminal
    screen.copy(b"\r 50%")
    assert shows("\r 50%")
    screen.labelled("ps:0", 0)("lease ended")
    assert shows("\r\x1b[Kps:0 | lease ended\n 50%")


def test_a_line_that_has_ended_is_left_alone(terminal: Opened) -> None:
    screen, shows = terminal
    screen.copy(b"done\n")
    screen.say("next")
    assert shows("done\nnext\n")


def test_a_copied_program_sees_a_terminal_of_the_same_size() -> None:
    outer, inner = pty.openpty()
    copied = Copied(inner, lambda data: None)
    reader, writer = copied.pipe()
    assert os.isatty(writer)
    for columns in (80, 132):
        size = struct.pack("4H", 24, columns, 0, 0)
        fcntl.ioctl(inner, termios.TIOCSWINSZ, size)
        copied.fit()
        assert os.get_terminal_size(writer) == (columns, 24)
    for descriptor in (outer, inner, reader, writer):
        os.close(descriptor)


def test_what_is_copied_arrives_unchanged_and_is_kept() -> None:
    written: list[bytes] = []
    copied = Copied(0, written.append)
    copied.feed(b"\r 50%\r100%\n\xff")
    copied.feed(b"")
    assert b"".join(written) == b"\r 50%\r100%\n\xff"
    assert copied.tail().startswith("100%\n")
