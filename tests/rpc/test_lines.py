"""Lines are found in a stream of text however it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratagem_rpc.lines import LineSplitter, visible


@given(st.text(), st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    splitter = LineSplitter()
    lines = splitter.feed(text[:cut]) + splitter.feed(text[cut:]) + splitter.end()
    assert lines == text.removesuffix("\n").split("\n")[: len(lines)]
    assert "\n".join(lines) == text.removesuffix("\n") or text == "\n"


def test_a_program_that_never_ends_its_line_is_cut() -> None:
    splitter = LineSplitter()
    assert splitter.feed("x" * 20_000) == ["x" * 20_000]
    assert splitter.end() == []


def test_of_a_progress_bar_the_last_state_is_seen() -> None:
    assert visible(" 10%\r 50%\r100%\r") == "100%"
    assert visible("line of a Windows program\r") == "line of a Windows program"
