"""How results and exceptions travel: without pickle, or pickled to who trusts the sender."""

from __future__ import annotations

import builtins
import pickle
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._shipping.kinds import (
    ObjectKind,
    PlainResultKind,
    ResultKind,
)
from stratagem._shipping.pickling import (
    ATOMS,
    Pickler,
    dump_exception,
    is_plain_tensor,
    read_by_program,
    reduced_tensor,
    refusal,
    words_of,
)
from stratagem._shipping.value_reader import read
from stratagem._shipping.value_writer import written
from stratagem_proto.errors import (
    ClosureInputError,
    InvalidTypeError,
    StratagemError,
    WorkerFunctionError,
)
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.status import STATUS_CODES, from_record, to_record

BUILTINS: dict[str, type[Exception]] = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception)
}
"""The exceptions of Python that are no requests to end a program."""


def encode_exception(error: BaseException | None) -> pb.ToldException | None:
    """Return what an exception can be made of again; None if it is of another class."""
    if isinstance(error, StratagemError):
        return _encode_own(error)
    if error is None or BUILTINS.get(type(error).__name__) is not type(error):
        return None
    try:
        # Of an OSError, `args` lacks the file.
        args = written(error.__reduce__()[1], "", "")
    except InvalidTypeError:
        return None
    return pb.ToldException(builtin=pb.BuiltinException(name=type(error).__name__, args=args))


def _encode_own(error: StratagemError) -> pb.ToldException | None:
    # A class of the program's may lack what the tree's have.
    if type(error) not in STATUS_CODES or not isinstance(vars(error).get("message"), str):
        return None
    original = error.original_exception if isinstance(error, ClosureInputError) else None
    return pb.ToldException(status=to_record(error), original=encode_exception(original))


def decode_exception(told: pb.ToldException) -> BaseException | None:
    """Return the exception that a message tells of; None if it is none of these."""
    if told.WhichOneof("kind") == "builtin":
        return _decode_builtin(told.builtin)
    if told.WhichOneof("kind") is None:
        return None
    error = from_record(told.status)
    if isinstance(error, ClosureInputError) and told.HasField("original"):
        error.original_exception = decode_exception(told.original)
    return error


def _decode_builtin(told: pb.BuiltinException) -> BaseException | None:
    cls = BUILTINS.get(told.name)
    try:
        args = read(told.args, "a worker")
        return cls(*args) if cls is not None and type(args) is tuple else None
    # What a class says of other arguments than its own.
    except (StratagemError, TypeError, ValueError):
        return None


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
    def add_exception(self, error: BaseException, failure: pb.Failure) -> None:
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

    def add_exception(self, error: BaseException, failure: pb.Failure) -> None:
        found = encode_exception(error)
        if found is not None:
            failure.told.CopyFrom(found)

    def exception_of(self, failure: pb.Failure, sender: str) -> BaseException:
        why = f"does not travel without pickle ({self._trust})"
        return decode_exception(failure.told) or _stand_in(failure, sender, why)


class _ResultPickler(Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return reduced_tensor(value.value().detach().cpu())
        if isinstance(value, ShardedVariable):
            return reduced_tensor(value.read_value().detach().cpu())
        if isinstance(value, torch.nn.Parameter) or is_plain_tensor(value):
            return reduced_tensor(value.detach().cpu())
        return super().reducer_override(value)


class PickledOutcomes(OutcomeForm):
    """Outcomes as pickles, by which a sender can make a reader do anything."""

    trusts_worker = True
    kind = ResultKind

    def dump(self, value: object) -> bytes:
        if type(value) in ATOMS:
            return pickle.dumps(value, protocol=5)
        try:
            return self._write(value)
        except Exception as error:
            raise refusal(value, "the result", self._write, error) from error

    def _write(self, value: object) -> bytes:
        return _ResultPickler(lambda _: None).write(value)

    def load(self, payload: bytes, sender: str) -> Any:
        return read_by_program(payload)

    def add_exception(self, error: BaseException, failure: pb.Failure) -> None:
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
            exception: object = read_by_program(failure.exception)
            if isinstance(exception, BaseException):
                return exception
            raise InvalidTypeError(f"its pickle holds a {type(exception).__name__}")
        except Exception as error:
            why = f"cannot be loaded here ({type(error).__name__}: {words_of(error)})"
            return _stand_in(failure, sender, why)


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
