"""Exceptions that travel without pickle: those of Python and of Stratagem."""

from __future__ import annotations

import builtins

from stratagem._shipping.values.reading import read
from stratagem._shipping.values.writing import written
from stratagem_proto.errors import ClosureInputError, InvalidTypeError, StratagemError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.status import from_record, to_record
from stratagem_proto.wire.status_codes import STATUS_CODES

BUILTINS: dict[str, type[Exception]] = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception)
}
"""The exceptions of Python that are no requests to end a program."""


def told(error: BaseException | None) -> pb.ToldException | None:
    """Return what an exception can be made of again; None if it is of another class."""
    if isinstance(error, StratagemError):
        return _told_of_tree(error)
    if error is None or BUILTINS.get(type(error).__name__) is not type(error):
        return None
    try:
        # Of an OSError, `args` lacks the file.
        args = written(error.__reduce__()[1], "", "")
    except InvalidTypeError:
        return None
    return pb.ToldException(builtin=pb.BuiltinException(name=type(error).__name__, args=args))


def _told_of_tree(error: StratagemError) -> pb.ToldException | None:
    # A class of the program's may lack what the tree's have.
    if type(error) not in STATUS_CODES or not isinstance(vars(error).get("message"), str):
        return None
    original = error.original_exception if isinstance(error, ClosureInputError) else None
    return pb.ToldException(status=to_record(error), original=told(original))


def exception_of(told: pb.ToldException) -> BaseException | None:
    """Return the exception that was told; None if it is none of these."""
    if told.WhichOneof("kind") == "builtin":
        return _builtin(told.builtin)
    if told.WhichOneof("kind") is None:
        return None
    error = from_record(told.status)
    if isinstance(error, ClosureInputError) and told.HasField("original"):
        error.original_exception = exception_of(told.original)
    return error


def _builtin(told: pb.BuiltinException) -> BaseException | None:
    cls = BUILTINS.get(told.name)
    try:
        args = read(told.args, "a worker")
        return cls(*args) if cls is not None and type(args) is tuple else None
    # What a class says of other arguments than its own.
    except (StratagemError, TypeError, ValueError):
        return None
