"""A pickle that shows whether anybody has loaded it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Trap:
    """Makes a file wherever it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@contextmanager
def unsprung(folder: Path) -> Iterator[bytes]:
    """Yield a pickle that nobody may load during the block."""
    file = folder / "sprung"
    yield pickle.dumps(Trap(file))
    assert not file.exists()
