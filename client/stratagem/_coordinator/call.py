"""A function with its arguments, as workers get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem_proto.errors import OutOfRangeError


@dataclass(frozen=True)
class Call:
    """What a worker runs.

    Attributes:
        function: What to call.
        args: Its positional arguments.
        kwargs: The others.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        """Calls the function and returns what it returns.

        Raises:
            OutOfRangeError: The function let the end of an iterator pass. Spec: COO-15.
            Exception: What the function raises.
        """
        try:
            return self.function(*self.args, **self.kwargs)
        except StopIteration as end:
            raise OutOfRangeError(
                "End of sequence: the dataset has no further elements; make a new "
                "iterator to start again"
            ) from end
