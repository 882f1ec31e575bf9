"""A function call that another process may make, and its outcome.

Usage: python -m stratagem_deploy.clusters.call CALL OUTCOME, both of them files.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from stratagem._shipping.pickling import dumps
from stratagem_proto.errors import AbortedError, InvalidTypeError


@dataclass(frozen=True)
class WorkerCall:
    """A function and its arguments.

    Attributes:
        function: Called once.
        arguments: Its positional arguments.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def outcome(self) -> Outcome:
        """Call the function in this process."""
        try:
            return Outcome(result=self.function(*self.arguments))
        except Exception as error:
            return Outcome(error=error, traceback=traceback.format_exc())
        except BaseException as stop:
            # SystemExit, raised once more, would end the process that waits for us.
            stopped = AbortedError(f"the function ended with {stop!r}")
            return Outcome(error=stopped, traceback=traceback.format_exc())

    def to_bytes(self) -> bytes:
        """Pickle it.

        Raises:
            InvalidTypeError: The function or an argument cannot be pickled.
        """
        try:
            return dumps(self)
        except Exception as unpicklable:
            raise InvalidTypeError(
                f"the function or one of its arguments cannot be sent to a process: "
                f"{unpicklable}; create it inside the function"
            ) from unpicklable


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        result: What the function returned, if there is no error.
        error: What it raised.
        traceback: Where it raised that, as Python prints it.
    """

    result: Any = None
    error: Exception | None = None
    traceback: str = ""

    def result_of(self, job: str, index: int) -> Any:
        """Return the result of this task's call, or raise its error.

        Raises:
            Exception: Whatever the function raised; its `__cause__` names the task and has the
                traceback of the process or thread that it ran in.
        """
        if self.error is None:
            return self.result
        raise self.error from AbortedError(
            f"{job}:{index} failed\n\n{self.traceback}", task=f"/job:{job}/task:{index}"
        )

    def to_bytes(self) -> bytes:
        """Pickle it; what cannot be pickled is replaced by an error that says so."""
        try:
            pickled = dumps(self)
            # Exceptions exist that are pickled well and cannot be read again.
            cloudpickle.loads(pickled)
        except Exception as unpicklable:
            pickled = dumps(self._stand_in(unpicklable))
        return pickled

    def _stand_in(self, unpicklable: Exception) -> Outcome:
        if self.error is not None:
            error = AbortedError(f"{type(self.error).__name__}: {self.error}")
            return Outcome(error=error, traceback=self.traceback)
        what = type(self.result).__name__
        message = (
            f"the function returned a {what}, which cannot be sent back: "
            f"{unpicklable}; return tensors, numbers, strings or containers of them"
        )
        return Outcome(error=InvalidTypeError(message))


def main() -> None:
    """Make the call in one file and write its outcome to another."""
    call_file, outcome_file = sys.argv[1:]
    call: WorkerCall = cloudpickle.loads(Path(call_file).read_bytes())
    outcome = call.outcome()
    # A process that is killed while it writes must seem to have written nothing.
    unfinished = Path(f"{outcome_file}.unfinished")
    unfinished.write_bytes(outcome.to_bytes())
    unfinished.replace(outcome_file)


if __name__ == "__main__":
    main()
