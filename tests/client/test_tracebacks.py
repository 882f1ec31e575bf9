"""What is left of a traceback whose frames are not all the program's."""

from __future__ import annotations

from stratagem._core.tracebacks import folded

PACKAGES = {
    "s.py": "stratagem",
    "d.py": "stratagem_deploy",
    "t.py": "torch",
    "p.py": "",
}
HINT = "; --full-tracebacks of `stratagem run` shows them"


def frame(path: str, margin: str = "  ") -> str:
    return f'{margin}File "{path}", line 7, in work\n{margin}  code()\n{margin}  ^^^^^^\n'


def seen(text: str) -> str:
    return folded(text, PACKAGES.get)


def test_frames_that_follow_each_other_are_one_line_and_the_programs_stay() -> None:
    head, end = "Traceback (most recent call last):\n", "ValueError: File is wrong\n"
    inside = frame("s.py") + frame("d.py") + frame("t.py")
    text = head + frame("mine.py") + inside + frame("mine.py") + frame("t.py") + end
    assert seen(text) == (
        head
        + frame("mine.py")
        + f"  … 3 frames of stratagem, torch{HINT}\n"
        + frame("mine.py")
        + "  … 1 frame of torch\n"
        + end
    )


def test_what_is_repeated_belongs_to_its_frame() -> None:
    repeated = "  [Previous line repeated 970 more times]\n"
    assert seen(frame("s.py") + repeated) == f"  … 1 frame of stratagem{HINT}\n"
    assert seen(frame("mine.py") + repeated) == frame("mine.py") + repeated


def test_pythons_frames_are_folded_only_where_others_called_them() -> None:
    text = frame("p.py") + frame("mine.py") + frame("p.py")
    assert seen(text) == text
    assert seen(frame("s.py") + frame("p.py") + frame("t.py")) == (
        f"  … 3 frames of stratagem, torch{HINT}\n"
    )


def test_frames_in_a_group_of_errors_are_folded_behind_their_margin() -> None:
    margin = "    |   "
    head = "    | Traceback (most recent call last):\n"
    end = "    | ValueError: wrong\n    +----\n"
    text = head + frame("s.py", margin) + frame("mine.py", margin) + end
    assert seen(text) == (
        f"{head}{margin}… 1 frame of stratagem{HINT}\n{frame('mine.py', margin)}{end}"
    )


def test_what_is_no_traceback_stays_as_it_is() -> None:
    for text in ("", "no end of line", '  File "s.py", line 3\n    x = = 1\n'):
        assert seen(text) == text
