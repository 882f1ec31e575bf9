"""Lines are found in a stream of bytes however it is cut."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from stratagem_deploy.transcript import LineSplitter, Transcript, visible


@given(st.text(st.characters(codec="utf-8")), st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(
    text: str, data: st.DataObject
) -> None:
    stream = text.encode()
    cut = data.draw(st.integers(0, len(stream)))
    splitter = LineSplitter()
    lines = splitter.feed(stream[:cut]) + splitter.feed(stream[cut:]) + splitter.end()
    assert lines == text.removesuffix("\n").split("\n")[: len(lines)]
    assert "\n".join(lines) == text.removesuffix("\n") or text == "\n"


def test_a_program_that_never_ends_its_line_is_cut() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * 20_000) == ["x" * 20_000]
    assert splitter.end() == []


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert LineSplitter().feed(b"a\xffb\n") == ["a\N{REPLACEMENT CHARACTER}b"]


def test_of_a_progress_bar_the_last_state_is_seen() -> None:
    assert visible(" 10%\r 50%\r100%\r") == "100%"
    assert visible("line of a Windows program\r") == "line of a Windows program"


def test_a_transcript_shows_every_line_and_keeps_the_last_thirty() -> None:
    shown: list[str] = []
    transcript = Transcript(shown.append)
    transcript.feed("".join(f"line {i}\n" for i in range(100)).encode())
    transcript.feed(b"unfinished")
    transcript.feed(b"")
    assert len(shown) == 101
    assert transcript.tail().splitlines() == shown[-30:]


def test_what_goes_into_its_pipe_comes_out() -> None:
    reader, writer = Transcript().pipe()
    os.write(writer, b"through")
    os.close(writer)
    assert os.read(reader, 100) == b"through"
    os.close(reader)
