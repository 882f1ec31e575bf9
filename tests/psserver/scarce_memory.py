"""Processes that run out of memory, by a limit of their address space."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

Argument = TypeVar("Argument")


def in_a_child(work: Callable[[Argument], str], argument: Argument) -> str:
    """What a function of a module returns in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, argument).result(110)


@contextmanager
def limited_memory(nbytes: int) -> Iterator[None]:
    """Lets this process take so many bytes more; call it in a child."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + nbytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
