"""Which runs of a server's process have recorded which of its changes. This module is pure.

A log can lose its end, for instance because its folder is restored from an older copy, and then
grow again. So a position alone does not say which change it is that a client was told of; with the
run that has recorded the change, it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stratagem_proto.errors import InvalidArgumentError, SessionLostError
from stratagem_proto.protocol import REACHED_BYTES as _ONE
from stratagem_proto.protocol import RUN_BYTES

# Runs that are remembered. Clients of those before have long been gone.
_MOST_RUNS = 4096

Facts: TypeAlias = Sequence[tuple[str, int]]
"""The name of each run as hexadecimal digits, and the position of the last change before it."""


class History:
    """The runs that have led to the state of a server, in their order.

    When it is used: a server that comes back from disk calls `restore` with what its image has,
    `note` for each segment of its log, and `begin` once it has replayed that; a replica that takes
    over, `begin`. From then on each answer tells `reached`, and each request is checked by
    `require`. A server whose state ends with its process begins no run, and tells nothing.

    Attributes:
        run: The name of the present run; b"" before it has begun.
    """

    def __init__(self) -> None:
        self.run: bytes = b""
        self._runs: list[tuple[bytes, int]] = []
        # The least position that answers tell of.
        self._least = 0

    def begin(self, run: bytes, after: int) -> None:
        """Begin a run.

        Args:
            run: Its name.
            after: The position of the last change before it.
        """
        self.run = run
        # Runs that have recorded nothing that is there.
        while self._runs and self._runs[-1][1] >= after:
            del self._runs[-1]
        self._runs = [*self._runs[1 - _MOST_RUNS :], (run, after)]

    def begin_unrecorded(self, run: bytes) -> None:
        """Begin a run that records no changes, and counts as one change by itself."""
        self.begin(run, self._runs[-1][1] + 1 if self._runs else 0)
        self._least = self._runs[-1][1] + 1

    def reached(self, position: int) -> bytes:
        """Return what to tell with an answer, as in the message `Reached`.

        Args:
            position: The position of the last change that the answer may tell of.
        """
        if not self.run:
            return b""
        run, after = self._runs[-1]
        position = max(position, self._least)
        if position <= after:
            # Of this run there may be no trace after its end.
            if len(self._runs) == 1:
                return b""
            run = self._runs[-2][0]
        return run + position.to_bytes(_ONE - RUN_BYTES, "big")

    def require(self, shown: bytes, label: str) -> None:
        """Check that the server has the changes that a client was told of.

        Args:
            shown: What the client shows: what `reached` was for it, and perhaps for another client;
                b"" if nobody was told of anything.
            label: The server's name, for the message.

        Raises:
            SessionLostError: It has not.
            InvalidArgumentError: It is malformed.
        """
        if not shown or not self.run or (shown[:RUN_BYTES] == self.run and len(shown) == _ONE):
            return
        if len(shown) not in (_ONE, 2 * _ONE):
            raise InvalidArgumentError(
                f"what a server has told of its changes takes {_ONE} bytes, not {len(shown)}"
            )
        for begin in range(0, len(shown), _ONE):
            self._require_one(shown[begin : begin + _ONE], label)

    def _require_one(self, reached: bytes, label: str) -> None:
        run = reached[:RUN_BYTES]
        if run == self.run:
            return
        position, end = int.from_bytes(reached[RUN_BYTES:], "big"), self._end_of(run)
        if end is None:
            what = "does not know of the run of it that has answered this program last"
        elif position > end:
            what = f"has {end} of the {position} changes that it had when it answered this program"
        else:
            return
        raise SessionLostError(
            f"{label} has lost changes that it had told of: it {what}. Its folder is an older "
            "copy, or its log is damaged. Restore the newest one; or start the program again, and "
            "it goes on from what there is; or restore a checkpoint"
        )

    def _end_of(self, run: bytes) -> int | None:
        """Return the position of the last change of a former run; None for one that is unknown."""
        names = [name for name, _ in self._runs]
        if run not in names:
            return None
        return self._runs[names.index(run) + 1][1]

    def note(self, run: bytes, after: int) -> None:
        """Note an earlier run, of which a segment of the log tells."""
        if run and run not in [name for name, _ in self._runs]:
            self._runs.append((run, after))
            self._runs.sort(key=lambda each: each[1])

    def facts(self) -> Facts:
        """Return everything as JSON."""
        return [(run.hex(), after) for run, after in self._runs]

    def restore(self, facts: Facts) -> None:
        """Restore what `facts` returned; no run is the present one then."""
        self._runs = [(bytes.fromhex(run), after) for run, after in facts]
