"""Exceptions on their way back from a worker, whatever their classes do."""

from __future__ import annotations

import cloudpickle

from stratagem._shipping.pickles.classes import ClassUnpickler, SessionClasses


def dump_exception(error: BaseException) -> bytes:
    """Return the pickle of an exception, which can be read again.

    Raises:
        Exception: What came of pickling it, or of reading the pickle: exceptions exist that are
            pickled well and cannot be read.
    """
    pickled: bytes = cloudpickle.dumps(error)
    ClassUnpickler(pickled, SessionClasses()).load()
    return pickled


def words_of(error: BaseException) -> str:
    """Return what an exception says; classes exist that fail to."""
    try:
        return str(error)
    except Exception as failure:
        return f"its text could not be made ({type(failure).__name__})"
