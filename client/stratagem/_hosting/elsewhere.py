"""Modules and optimizers on a worker server, which another program has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem_proto.errors import InvalidArgumentError


class MadeElsewhere:
    """Says that functions of a worker server make nothing that a strategy hosts.

    What they use comes from the program that sends them.

    Args:
        place: The name of this worker in errors.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._optimizer: str | None = None

    @contextmanager
    def naming(self, optimizer: str) -> Iterator[None]:
        """Give the next optimizer the name that it has where it was made."""
        self._optimizer = optimizer
        try:
            yield
        finally:
            self._optimizer = None

    def optimizer_name(self, class_name: str) -> str:
        """Return what `naming` says.

        Raises:
            InvalidArgumentError: A function makes the optimizer.
        """
        if self._optimizer is None:
            raise self.refusal(f"an optimizer, {class_name}")
        return self._optimizer

    def refusal(self, what: str) -> InvalidArgumentError:
        """Return the error of a function that makes something."""
        return InvalidArgumentError(
            f"{what}, was made under the strategy in a function that runs on "
            f"{self._place}, where each call would make another one; make it in the "
            "program that sends the function, inside `with strategy.scope():`, and use "
            "it in the function",
            task=self._place,
        )
