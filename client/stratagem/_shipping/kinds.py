"""The kinds of objects that closures refer to, and what closures return of them."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._shipping.classes import read_by_program
from stratagem._shipping.pickling import ATOMS, Pickler, is_plain_tensor, reduced_tensor
from stratagem._shipping.refusal import refusal
from stratagem._strategies.strategy import Strategy


@dataclass(frozen=True)
class WorkerTask:
    """The worker that objects are made on.

    Attributes:
        index: Its index in the job "worker".
        token: The secret of the cluster, which does not travel with objects; None for that of the
            environment.
        address: Where the coordinator reaches it, "host:port"; "" for the address that the cluster
            has for it.
    """

    index: int
    token: str | None = None
    address: str = ""


class Change(NamedTuple):
    """What is new of an object.

    Attributes:
        essence: What the object was made of.
        state: What is new of its state.
        removed: What its state had, and has no more.
    """

    essence: Any
    state: Mapping[str, Any]
    removed: Set[str]


class ObjectKind(ABC):
    """How objects of one kind are taken apart, and made elsewhere.

    The coordinator calls `subject` for each object that it meets, and `essence` once for each
    subject. A worker calls `make` once, or for each function where these do not share the object.
    What `essence` returns is pickled as closures are, so that objects in it that stay on workers
    are only named; `make` gets it with such objects in place.

    Attributes:
        name: Its name in definitions.
        types: Classes whose instances may be of this kind.
        pickles: Whether the essence is pickled; otherwise it is a plain value.
        shared: Whether all functions of a worker have the same object.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[type, ...]]
    pickles: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    @abstractmethod
    def subject(self, value: Any, strategy: Strategy) -> object | None:
        """Return the object to which a handle belongs; None if it travels by value.

        Raises:
            StratagemError: It cannot travel at all.
        """

    @abstractmethod
    def label(self, subject: Any) -> str:
        """Return what errors call it."""

    @abstractmethod
    def essence(self, subject: Any, strategy: Strategy) -> Any:
        """Return what it is made of."""

    @abstractmethod
    def make(self, essence: Any, task: WorkerTask) -> object:
        """Return the object of a worker that corresponds to a subject."""


class SessionKind(ObjectKind):
    """A kind whose objects keep something outside of their process while they live."""

    @abstractmethod
    def refresh(self, made: Any) -> None:
        """Prepare an object for a function that was loaded and may use it."""

    def reached(self, made: Any) -> Mapping[int, bytes]:
        """Return how far servers had come when they answered an object last, by task index."""
        return {}

    @abstractmethod
    def close(self, made: Any) -> None:
        """Give up what an object keeps."""


class ChangingKind(ObjectKind):
    """A kind whose objects change on the coordinator while they live.

    The coordinator calls `state` whenever a subject travels; a worker calls `update` after `make`,
    and whenever the state is another. It is pickled as `essence` is.

    Attributes:
        settings: The parts of the state that are the program's alone: each function on a worker
            begins with them as the program has them, whatever functions before have made of them.
    """

    settings: ClassVar[frozenset[str]] = frozenset()

    def stamp(self, subject: Any) -> object:
        """Return what is another one whenever the state is; None if nothing tells."""
        return None

    @abstractmethod
    def state(self, subject: Any) -> Mapping[str, Any]:
        """Return what of it may change, in parts with names."""

    @abstractmethod
    def update(self, made: Any, change: Change) -> None:
        """Bring what `make` returned up to date, in place."""

    def restore(self, made: Any, settings: Mapping[str, Any]) -> None:
        """Undo what a function has made of settings; those that are missing are not set."""


class RemoteObject(ABC):
    """Stands for what a worker keeps under a handle: a result, or its own part.

    A closure that has one gets what the worker that runs it keeps. The sender of the closure sees
    to it that the worker has it.
    """

    @abstractmethod
    def _shipped_handle(self) -> int:
        """Return the handle, from `ClosurePickler.new_handle`."""

    @abstractmethod
    def _shipped_subject(self) -> object:
        """Return the object while which lives the handle is valid."""


# A program may make classes without end, and drop them with all that they have.
_MOST_KNOWN = 1 << 10


class KindTable(dict[type, "ObjectKind | type[RemoteObject] | None"]):
    """By class, of which kind its instances may be; None for what travels by value.

    A dict, because each object that is pickled is looked up here.
    """

    def __init__(self, *kinds: ObjectKind) -> None:
        super().__init__()
        self.kinds = kinds

    def __missing__(self, cls: type) -> ObjectKind | type[RemoteObject] | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        fitting = (kind for kind in self.kinds if issubclass(cls, kind.types))
        found = RemoteObject if issubclass(cls, RemoteObject) else next(fitting, None)
        self[cls] = found
        return found


def dump_result(value: object) -> bytes:
    """Return the payload of what a closure returned.

    Tensors come to the CPU of the other side, without what autograd knows. Variables and parameters
    become tensors of the values that they have now.

    Raises:
        InvalidTypeError: Something in it cannot be pickled.
    """
    if type(value) in ATOMS:
        return pickle.dumps(value, protocol=5)
    try:
        return _write(value)
    except Exception as error:
        raise refusal(value, "the result", _write, error) from error


def load_result(payload: bytes) -> Any:
    """Return what `dump_result` was given."""
    return read_by_program(payload)


def _write(value: object) -> bytes:
    return _ResultPickler(lambda _: None).write(value)


class _ResultPickler(Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return reduced_tensor(value.value().detach().cpu())
        if isinstance(value, ShardedVariable):
            return reduced_tensor(value.read_value().detach().cpu())
        if isinstance(value, torch.nn.Parameter) or is_plain_tensor(value):
            return reduced_tensor(value.detach().cpu())
        return super().reducer_override(value)


class ResultKind(ObjectKind):
    """A pickled result that other workers get as it travelled."""

    name = "result"
    types = ()
    shared = False

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return None

    def label(self, subject: Any) -> str:
        return "a result"

    def essence(self, subject: Any, strategy: Strategy) -> Any:
        return subject

    def make(self, essence: Any, task: WorkerTask) -> object:
        return essence


class PlainResultKind(ResultKind):
    """A result without pickle that other workers get as it travelled, maybe from each other."""

    name = "plain result"
    pickles = False
