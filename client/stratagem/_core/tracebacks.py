"""What Python prints of an error that ends a program, without our own frames.

The text is folded, and not the traceback object: it has the errors that caused this one, groups of
errors, and what workers sent of theirs, each in the same form.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

FOLD_VARIABLE = "STRATAGEM_FOLD_TRACEBACKS"

_HINT = "; --full-tracebacks of `stratagem run` shows them"
_INSIDE = (
    "stratagem",
    "stratagem_deploy",
    "stratagem_proto",
    "stratagem_reader",
    "stratagem_rpc",
    "stratagem_storage",
    "stratagem_worker",
    "torch",
    "grpc",
)
_PYTHON = ""
_FRAME = re.compile(r'(?P<margin>[ |]*)File "(?P<path>[^"\n]+)", line \d+, in ')


@dataclass
class _Frame:
    """One frame of a traceback, as it is printed.

    Attributes:
        margin: What stands in front of it.
        path: File of its code.
        lines: All of its lines, with their ends.
    """

    margin: str
    path: str
    lines: list[str] = field(default_factory=list)

    def owns(self, line: str) -> bool:
        """Whether a line that follows is this frame's."""
        repeated = f"{self.margin}[Previous line repeated"
        return line.startswith((f"{self.margin}  ", repeated))


def install() -> None:
    """Folds what is printed of errors from now on, if the environment wants it.

    An `excepthook` of somebody else's stays.
    """
    if os.environ.get(FOLD_VARIABLE) and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_folded


def folded(text: str, package_of: Callable[[str], str | None]) -> str:
    """Returns a traceback with one line in place of frames that follow each other.

    Args:
        text: As Python prints it.
        package_of: Names the package that a file is of; None if it is the program's own, and "" if
            it is of Python, whose frames are kept unless others called them that are not.
    """
    shown: list[str] = []
    hidden: list[str] = []
    hint = _HINT
    for part in [*_parts(text), ""]:
        package = package_of(part.path) if isinstance(part, _Frame) else None
        if isinstance(part, _Frame) and (package or (hidden and package == _PYTHON)):
            margin = part.margin
            hidden.append(package or _PYTHON)
            continue
        if hidden:
            shown.append(f"{margin}… {_words(hidden)}{hint}\n")
            hidden, hint = [], ""
        shown += part.lines if isinstance(part, _Frame) else [part]
    return "".join(shown)


def _parts(text: str) -> Iterator[_Frame | str]:
    """The frames of a text, and the lines that are of none."""
    frame: _Frame | None = None
    for line in text.splitlines(keepends=True):
        begun = _FRAME.match(line)
        if frame and not begun and frame.owns(line):
            frame.lines.append(line)
            continue
        if frame:
            yield frame
        frame = _Frame(begun["margin"], begun["path"], [line]) if begun else None
        if not begun:
            yield line
    if frame:
        yield frame


def _words(packages: list[str]) -> str:
    names = dict.fromkeys(name.partition("_")[0] for name in packages if name)
    number = len(packages)
    return f"{number} frame{'s' * (number > 1)} of {', '.join(names)}"


def _print_folded(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(folded(text, partial(_package, _roots())))


def _roots() -> dict[Path, str]:
    """The folders of the packages whose frames are folded, and of Python's own."""
    specs = ((name, find_spec(name)) for name in _INSIDE)
    found = {
        Path(folder): name
        for name, spec in specs
        if spec
        for folder in spec.submodule_search_locations or ()
    }
    return {**found, Path(sysconfig.get_path("stdlib")): _PYTHON}


def _package(roots: dict[Path, str], path: str) -> str | None:
    """Returns the package that a file is of, by the innermost folder that is known."""
    if path.startswith("<frozen "):
        return _PYTHON
    for parent in Path(path).parents:
        if parent.name in ("site-packages", "dist-packages"):
            return None
        if parent in roots:
            return roots[parent]
    return None
