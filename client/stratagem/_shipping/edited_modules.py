"""Modules that are edited during an interactive session, which workers have loaded as they were."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle

_STDLIB = sysconfig.get_path("stdlib")


class EditedModules:
    """Has the code of a session's own modules travel once one of their files is edited.

    A worker imports a module once. What `%autoreload` changes here would not reach it, and it would
    go on with the former code. Whoever edits files while a script runs does not mean that script,
    so only interactive sessions are looked at.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._edited = False
        self.look()

    def look(self) -> None:
        """See whether a file was edited since the last look."""
        if not hasattr(sys, "ps1"):
            return
        own = dict(_own_modules())
        for name, module in own.items():
            written = _written(module)
            self._edited |= self._seen.setdefault(name, written) != written
        if self._edited:
            # Those that were not edited may hold functions of others that were.
            for module in own.values():
                cloudpickle.register_pickle_by_value(module)


def _own_modules() -> Iterator[tuple[str, ModuleType]]:
    """The modules that are neither Python's, nor installed, nor ours."""
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not file or name == "__main__":
            continue
        if not _is_installed(file) and not name.startswith("stratagem"):
            yield name, module


def _is_installed(file: str) -> bool:
    return file.startswith(_STDLIB) or bool(
        {"site-packages", "dist-packages"} & {*Path(file).parts}
    )


def _written(module: ModuleType) -> float:
    """When its file was written; 0 if it is no file any more."""
    assert module.__file__
    try:
        return Path(module.__file__).stat().st_mtime
    except OSError:
        return 0.0
