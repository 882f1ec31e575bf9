"""How values of servers come into the copies here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.group import ServerGroup
from stratagem_proto.wire.encodings import can_narrow

Found = TypeVar("Found")


class Pulls(AbstractContextManager[None]):
    """Entered while values come into copies; by several threads, if need be.

    Until they are accepted, such copies look as if the user had written them.

    Args:
        servers: Where the values are.
        dtype: What trainable variables are rounded to on their way to a training step; None for not
            at all.
    """

    def __init__(self, servers: ServerGroup, dtype: torch.dtype | None) -> None:
        self._servers, self._dtype = servers, dtype
        self._lock = threading.Lock()
        self._begun = self._under_way = 0

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._under_way -= 1

    def apart(self, look: Callable[[], list[Found]]) -> list[Found]:
        """Return what a look at copies finds, unless a value may have come meanwhile.

        What is found beside a value that comes is found again by the next look, if the user has
        written it.
        """
        begun = self._begun
        if self._under_way:
            return []
        found = look()
        return found if self._begun == begun else []

    def rounded_to(self, variable: RemoteVariable, training: bool) -> torch.dtype | None:
        """Return what a variable is rounded to on its way; None for not at all."""
        dtype = self._dtype if training and not self._servers.snapshot else None
        if dtype is None or not variable.trainable:
            return None
        return dtype if can_narrow(variable.dtype, dtype) else None
