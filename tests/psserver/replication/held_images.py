"""Images that servers of this process do not finish to load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from stratagem_psserver.checkpoints import resume_variables
from stratagem_psserver.persistence import images

_LONGEST_SECONDS = 20.0


class HeldImages:
    """Holds whoever loads an image, until it is released.

    Attributes:
        are_loading: Set once somebody loads one.
        is_overdue: Whether it was not released before others had to wait for too long.
    """

    def __init__(self) -> None:
        self.are_loading, self._released = threading.Event(), threading.Event()
        self.is_overdue = False

    def resume(self, *arguments: Any, **others: Any) -> None:
        """Load the variables of an image once this is released."""
        self.are_loading.set()
        self.is_overdue |= not self._released.wait(_LONGEST_SECONDS)
        resume_variables(*arguments, **others)

    def await_loading(self) -> None:
        """Wait until somebody loads an image."""
        assert self.are_loading.wait(_LONGEST_SECONDS)

    def release(self) -> None:
        """Let images be loaded."""
        self._released.set()


@contextmanager
def held_images() -> Iterator[HeldImages]:
    """Holds images, and releases them at the end."""
    held = HeldImages()
    with patch.object(images, "resume_variables", held.resume):
        try:
            yield held
        finally:
            held.release()
        assert not held.is_overdue, "nothing went on while an image was being loaded"
