"""The lines that a process wrote."""

from __future__ import annotations

import os

from stratagem_deploy.processes.process import Transcript


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    shown: list[str] = []
    Transcript(shown.append).feed(b"a\xffb\n")
    assert shown == ["a\N{REPLACEMENT CHARACTER}b"]


def test_a_letter_may_arrive_in_two_parts() -> None:
    shown: list[str] = []
    transcript = Transcript(shown.append)
    for byte in "\N{EURO SIGN}\n".encode():
        transcript.feed(bytes([byte]))
    assert shown == ["\N{EURO SIGN}"]


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
