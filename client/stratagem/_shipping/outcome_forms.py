"""How results and exceptions travel: without pickle, or pickled to who trusts the sender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from stratagem._shipping.classes import dump_exception, read_by_program, words_of
from stratagem._shipping.kinds import (
    ObjectKind,
    PlainResultKind,
    ResultKind,
    dump_result,
    load_result,
)
from stratagem._shipping.told_exceptions import exception_of, told
from stratagem._shipping.values.reading import read
from stratagem._shipping.values.writing import written
from stratagem_proto.errors import InvalidTypeError, WorkerFunctionError
from stratagem_proto.v1 import worker_pb2 as pb


class OutcomeForm(ABC):
    """How outcomes of functions become bytes, and values and exceptions again.

    Attributes:
        trusts_worker: Whether who reads them calls what the sender names.
        kind: The kind of the definition by which another worker gets such a result.
    """

    trusts_worker: ClassVar[bool]
    kind: ClassVar[type[ObjectKind]]

    @abstractmethod
    def dump(self, value: object) -> bytes:
        """Return a result as bytes.

        Tensors come to the CPU of the other side, without what autograd knows. Variables and
        parameters become tensors of the values that they have now.

        Raises:
            InvalidTypeError: Something in it does not travel; says what, and where.
        """

    @abstractmethod
    def load(self, payload: bytes, sender: str) -> Any:
        """Return what `dump` was given, which errors say that `sender` returned.

        Raises:
            StratagemError: It is no such value.
        """

    @abstractmethod
    def tell(self, error: BaseException, failure: pb.Failure) -> None:
        """Add an exception to the message of a failure, if its class can travel."""

    @abstractmethod
    def exception_of(self, failure: pb.Failure, sender: str) -> BaseException:
        """Return the exception of a failure, or a `WorkerFunctionError` in its place."""


class PlainOutcomes(OutcomeForm):
    """Outcomes as plain values, by which no sender can make a reader do anything.

    Args:
        trust: How a program says that it trusts workers, for errors.
    """

    trusts_worker = False
    kind = PlainResultKind

    def __init__(self, trust: str) -> None:
        self._trust = trust

    def dump(self, value: object) -> bytes:
        way_out = (
            "Return what it is made of; or let the program unpickle what its workers send, by "
            f"{self._trust}, if whoever takes over a worker may have the program too"
        )
        return written(value, "the result", way_out)

    def load(self, payload: bytes, sender: str) -> Any:
        return read(payload, sender)

    def tell(self, error: BaseException, failure: pb.Failure) -> None:
        found = told(error)
        if found is not None:
            failure.told.CopyFrom(found)

    def exception_of(self, failure: pb.Failure, sender: str) -> BaseException:
        why = f"does not travel without pickle ({self._trust})"
        return exception_of(failure.told) or _stand_in(failure, sender, why)


class PickledOutcomes(OutcomeForm):
    """Outcomes as pickles, by which a sender can make a reader do anything."""

    trusts_worker = True
    kind = ResultKind

    def dump(self, value: object) -> bytes:
        return dump_result(value)

    def load(self, payload: bytes, sender: str) -> Any:
        return load_result(payload)

    def tell(self, error: BaseException, failure: pb.Failure) -> None:
        try:
            failure.exception = dump_exception(error)
        except Exception as reason:
            failure.pickling_error = f"{type(reason).__name__}: {words_of(reason)}"

    def exception_of(self, failure: pb.Failure, sender: str) -> BaseException:
        if failure.HasField("told"):
            return PLAIN.exception_of(failure, sender)
        if not failure.exception:
            why = f"could not be pickled there ({failure.pickling_error})"
            return _stand_in(failure, sender, why)
        try:
            return _loaded(failure.exception)
        except Exception as error:
            why = f"cannot be loaded here ({type(error).__name__}: {words_of(error)})"
            return _stand_in(failure, sender, why)


def _loaded(pickled: bytes) -> BaseException:
    exception: object = read_by_program(pickled)
    if not isinstance(exception, BaseException):
        raise InvalidTypeError(f"its pickle holds a {type(exception).__name__}")
    return exception


def _stand_in(failure: pb.Failure, sender: str, why: str) -> WorkerFunctionError:
    error = WorkerFunctionError(
        f"{sender} raised {failure.class_name}, which {why}: {failure.message}", task=sender
    )
    error.class_name, error.text = failure.class_name, failure.message
    error.traceback = failure.traceback
    return error


PLAIN = PlainOutcomes("ClusterCoordinator(strategy, trust_workers=True)")
PLAIN_OF_HOSTS = PlainOutcomes("TPUStrategy(resolver, trust_workers=True)")
PICKLED = PickledOutcomes()


def form_for(trusts_worker: bool) -> OutcomeForm:
    """Return how outcomes travel to who trusts workers, or does not."""
    return PICKLED if trusts_worker else PLAIN


def form_of_hosts(trusts_hosts: bool) -> OutcomeForm:
    """Return how outcomes travel to a program that trusts its hosts, or does not."""
    return PICKLED if trusts_hosts else PLAIN_OF_HOSTS
