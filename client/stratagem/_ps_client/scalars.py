"""Numbers that a program tells whoever watches its cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.protocol import MOST_SCALARS, SCALAR_NAME_CHARACTERS
from stratagem_proto.v1.session_pb2 import Scalar


class Scalars:
    """The numbers that a program has logged last, which its heartbeats tell. Thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._changing = threading.Lock()

    def log(self, scalars: Mapping[str, float | torch.Tensor]) -> None:
        """Keep numbers by their names, each in place of the one before.

        Raises:
            InvalidArgumentError: A name is empty or too long, or there are too many names.
            InvalidTypeError: A value is no number.
        """
        values = {_checked(name): _number(name, value) for name, value in scalars.items()}
        with self._changing:
            together = self._values | values
            if len(together) > MOST_SCALARS:
                raise InvalidArgumentError(
                    f"a program logs at most {MOST_SCALARS} numbers under different names, and "
                    f"these would be {len(together)}; use fewer names"
                )
            self._values = together

    def told(self) -> list[Scalar]:
        """Return what a heartbeat says of them."""
        with self._changing:
            return [Scalar(name=name, value=value) for name, value in self._values.items()]


def _checked(name: str) -> str:
    if not 0 < len(name) <= SCALAR_NAME_CHARACTERS:
        raise InvalidArgumentError(
            f"the name of a logged number has 1 to {SCALAR_NAME_CHARACTERS} characters, and "
            f"{name[:40]!r} has {len(name)}"
        )
    return name


def _number(name: str, value: float | torch.Tensor) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{name!r} is logged as {value!r:.100}, which is no number; log a number, or a tensor "
            "of one element"
        ) from error
