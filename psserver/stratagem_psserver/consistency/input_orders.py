"""What workers have read of the datasets that all of them have to read in one order."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.input_order import MAX_REPORTED, BatchRead, different_inputs
from stratagem_proto.v1.consistency_pb2 import InputDigest
from stratagem_psserver.exactly_once.session import Session

# Workers that step together are at most a step apart. Those that only read may be a pass apart.
MAX_REMEMBERED = 16_384


class _Place(NamedTuple):
    """A batch as those see it who began together.

    A worker that was started again counts its passes from 0 again, and so do its others when all
    were started again, so only sessions that are the n-th of their tasks are compared.
    """

    life: int
    dataset: int
    pass_number: int
    batch: int | None


class _Report(NamedTuple):
    digest: int
    task: str


class _Difference(NamedTuple):
    dataset: int
    message: str


class InputOrders:
    """Compares what workers report of the same batch.

    Whoever reports last finds the difference. All workers get it as an error, with what they report
    next and from what they wait for, until they report of a later dataset.
    """

    def __init__(self) -> None:
        self._reports: OrderedDict[_Place, _Report] = OrderedDict()
        self._lives: dict[bytes, int] = {}
        # How many sessions of each task have reported.
        self._sessions: Counter[str] = Counter()
        self._differences: dict[bytes, _Difference] = {}

    def report(self, session: Session, inputs: Sequence[InputDigest]) -> None:
        """Compare what a worker has read with what others have reported.

        Raises:
            InvalidArgumentError: Another worker has read something else; all requests that wait are
                to look at `require_alike`. Or there are too many entries.
        """
        if not inputs:
            return
        if len(inputs) > MAX_REPORTED:
            raise InvalidArgumentError(
                f"{session.label} reports {len(inputs)} batches at once; {MAX_REPORTED} are the "
                "most"
            )
        found = self._differences.get(session.id)
        if found is not None and max(one.dataset for one in inputs) > found.dataset:
            del self._differences[session.id]
        self.require_alike(session)
        for one in inputs:
            if one.first and session.id not in self._lives:
                self._lives[session.id] = self._sessions[session.label]
                self._sessions[session.label] += 1
            # After a restart of the server nobody knows when the others began.
            if (life := self._lives.get(session.id)) is not None:
                self._compare(session, life, one)

    def require_alike(self, session: Session) -> None:
        """Raise InvalidArgumentError if a worker has read something else than others."""
        if found := self._differences.get(session.id):
            raise InvalidArgumentError(found.message)

    def _compare(self, session: Session, life: int, one: InputDigest) -> None:
        batch = one.batch if one.HasField("batch") else None
        # Whoever passes over data more often still divides the same files.
        number = 0 if batch is None else getattr(one, "pass")
        read = BatchRead(one.dataset, number, batch, one.digest)
        place = _Place(life, *read[:3])
        known = self._reports.setdefault(place, _Report(one.digest, session.label))
        while len(self._reports) > MAX_REMEMBERED:
            self._reports.popitem(last=False)
        if known.digest == one.digest:
            return
        error = different_inputs(read, session.label, known.digest, known.task)
        found = _Difference(one.dataset, str(error))
        for id_, began in self._lives.items():
            if began == life:
                self._differences[id_] = found
        raise error

    def session_ended(self, session_id: bytes) -> None:
        """Forget a session, and all that was read once none is left."""
        self._differences.pop(session_id, None)
        if self._lives.pop(session_id, None) is not None and not self._lives:
            self._reports.clear()
            self._sessions.clear()
