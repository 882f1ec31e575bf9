"""What a session keeps on its worker."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import cloudpickle

from stratagem_proto.errors import NotFoundError


class Loader(Protocol):
    """Makes objects of payloads; all calls come from one thread, in order."""

    def define(self, handle: int, payload: bytes) -> None:
        """Takes in an object, or how it is from now on."""

    def keep(self, handle: int, value: object) -> None:
        """Keeps what a function returned, for payloads that name it."""

    def load(self, payload: bytes) -> Callable[[], object]:
        """Returns a function that takes no arguments; raises whatever is wrong."""

    def dump(self, value: object) -> bytes:
        """Returns the payload of a result; raises whatever is wrong."""

    def release(self, handles: Iterable[int]) -> None:
        """Forgets objects."""

    def close(self) -> None:
        """Forgets everything."""


class PickledObjects:
    """Payloads are pickles, and objects in them are named by persistent ids."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def define(self, handle: int, payload: bytes) -> None:
        self._objects[handle] = self.load(payload)

    def keep(self, handle: int, value: object) -> None:
        self._objects[handle] = value

    def load(self, payload: bytes) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(payload))
        unpickler.persistent_load = self._find  # type: ignore[method-assign]
        return unpickler.load()

    def dump(self, value: object) -> bytes:
        payload: bytes = cloudpickle.dumps(value)
        return payload

    def release(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._objects.pop(handle, None)

    def close(self) -> None:
        self._objects.clear()

    def _find(self, handle: Any) -> Any:
        if handle not in self._objects:
            raise NotFoundError(
                f"the worker has nothing under handle {handle}; define it first"
            )
        return self._objects[handle]
