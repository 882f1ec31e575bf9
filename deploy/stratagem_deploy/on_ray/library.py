"""The library of Ray, which is loaded when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def load() -> Any:
    """Return the module `ray`.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "RayCluster needs Ray, which is not installed: run `pip install 'stratagem[ray]'`"
        ) from error
    return ray


@contextmanager
def connected() -> Iterator[None]:
    """Connect to Ray as `ray.init()` does, unless the program has."""
    ray = load()
    if ray.is_initialized():
        yield
        return
    ray.init()
    try:
        yield
    finally:
        ray.shutdown()
