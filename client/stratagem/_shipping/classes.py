"""Classes and exceptions that travel by value, and whose they are where they arrive.

cloudpickle has one class for an identity in a process, and sets its attributes again whenever a
pickle of it is read. So a program whose worker server is in its own process would get the methods
of the worker, with the worker's strategy in their globals; and one that reads a result would get
copies of its own methods, with copies of globals.
"""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, closing
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

from cloudpickle import cloudpickle

from stratagem._shipping.code import dumps


def dump_exception(error: BaseException) -> bytes:
    """Return the pickle of an exception, which can be read again.

    Raises:
        Exception: What came of pickling it, or of reading the pickle: exceptions exist that are
            pickled well and cannot be read.
    """
    pickled = dumps(error)
    ClassUnpickler(pickled, SessionClasses()).load()
    return pickled


def words_of(error: BaseException) -> str:
    """Return what an exception says; classes exist that fail to."""
    try:
        return str(error)
    except Exception as failure:
        return f"its text could not be made ({type(failure).__name__})"


_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")
_SETTER = "_class_setstate"

_SHORT = 1 << 10
"""Bytes of a pickle up to which it pays to look for classes before reading it."""


class Classes(ABC):
    """The classes that a reader has, by the identity that cloudpickle gives them."""

    @abstractmethod
    def known(self, identity: str) -> type | None:
        """Return the class of an identity, None if there is none yet."""

    @abstractmethod
    def add(self, identity: str, made: type) -> None:
        """Take in a class that was made because none was known."""

    @abstractmethod
    def changes(self, known: type) -> bool:
        """Return whether a class becomes what a pickle says of it."""


class SessionClasses(Classes):
    """The classes that one program has sent to a worker so far."""

    def __init__(self) -> None:
        self._classes: WeakValueDictionary[str, type] = WeakValueDictionary()

    def known(self, identity: str) -> type | None:
        return self._classes.get(identity)

    def add(self, identity: str, made: type) -> None:
        self._classes[identity] = made
        # What comes of them is of the program's class again, where that is read.
        with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity

    def changes(self, known: type) -> bool:
        return True


_MAKING = RLock()
"""Held while a value is read that has classes of the program, or makes some."""


class ProgramClasses(Classes):
    """The classes of the program, which stay as they are while one value is read.

    To be closed when that is read: until then, a class may not have its attributes yet, and other
    threads wait for it.
    """

    def __init__(self) -> None:
        self._made: set[type] = set()
        self._held = ExitStack()

    def close(self) -> None:
        """Let other threads have what was made."""
        self._held.close()

    def known(self, identity: str) -> type | None:
        self._held.enter_context(_MAKING)
        found: type | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
        return found

    def add(self, identity: str, made: type) -> None:
        cloudpickle._lookup_class_or_track(identity, made)
        self._made.add(made)

    def changes(self, known: type) -> bool:
        return known in self._made


class ClassUnpickler(pickle.Unpickler):
    """Reads pickles of cloudpickle."""

    def __init__(self, payload: bytes, classes: Classes) -> None:
        super().__init__(io.BytesIO(payload))
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module != cloudpickle.__name__:
            return found
        if name in _MAKERS:
            return self._making_by(found)
        return self._set_state if name == _SETTER else found

    def _making_by(self, make: Callable[..., type]) -> Callable[..., type]:
        def known_or_made(*about: Any) -> type:
            *about_it, identity, extra = about
            known = self._classes.known(identity)
            if known is None:
                known = make(*about_it, None, extra)
                self._classes.add(identity, known)
            return known

        return known_or_made

    def _set_state(self, known: type, state: Any) -> Any:
        if self._classes.changes(known):
            cloudpickle._class_setstate(known, state)
        return known


def read_by_program(payload: bytes) -> Any:
    """Return a value from a worker; of classes that are the program's, its own."""
    if len(payload) < _SHORT and _SETTER.encode() not in payload:
        return pickle.loads(payload)
    with closing(ProgramClasses()) as classes:
        return ClassUnpickler(payload, classes).load()
