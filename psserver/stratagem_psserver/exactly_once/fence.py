"""Which process of each task may act, where another one has been started in its place.

A process that takes the place of another one reads how far that has come, and goes on from there.
So nothing of the other may be applied any more by then, whether it has ended, or is cut off and
does not know that it was replaced. This module is pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from stratagem_proto.errors import SupersededError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_WORKER, Task
from stratagem_psserver.exactly_once.session import Session

# Tasks whose processes are known: as many as there can be sessions.
_MOST_PRESENT = 65_536

# Former clients that are remembered. Those before have long been gone.
_MOST_FORMER = 10_000

_Place: TypeAlias = tuple[str, int]


class Fence:
    """The present process of each task that changes variables, and the clients of former ones.

    The process counts that has come last. A program that waits to coordinate takes no place.
    """

    def __init__(self) -> None:
        self._present: OrderedDict[_Place, bytes] = OrderedDict()
        self._former: OrderedDict[bytes, None] = OrderedDict()

    def replaced_by(self, session: Session) -> bytes:
        """Return the process whose place that of a session takes; b"" if there is none."""
        if not _is_guarded(session):
            return b""
        present = self._present.get(_place(session.task), b"")
        return b"" if present == session.process else present

    def enter(self, session: Session, known: Iterable[Session]) -> None:
        """Let the process of a session act for its task, and no other one from now on.

        Args:
            session: One that is opened, and may be.
            known: All that are open or can be resumed.
        """
        if former := self.replaced_by(session):
            self._retire(one for one in known if one.is_of(session.task, former))
        if _is_guarded(session):
            # It keeps the place in the order that replicas and images know.
            self._present[_place(session.task)] = session.process
            if len(self._present) > _MOST_PRESENT:
                self._present.popitem(last=False)

    def _retire(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            self._former[session.client] = None
        while len(self._former) > _MOST_FORMER:
            self._former.popitem(last=False)

    def require(self, session: Session) -> None:
        """Check that the client of a session may ask for something.

        Raises:
            SupersededError: It is that of a former process.
        """
        if session.client in self._former:
            raise superseded(session)

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "present": [[*place, process.hex()] for place, process in self._present.items()],
            "former": [client.hex() for client in self._former],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        self._present = OrderedDict(
            ((job, index), bytes.fromhex(process)) for job, index, process in facts["present"]
        )
        self._former = OrderedDict.fromkeys(map(bytes.fromhex, facts["former"]))


def superseded(session: Session) -> SupersededError:
    """Return the error of a process in whose place another one acts."""
    return SupersededError(
        f"another process has begun as {session.label} after this one, and has its place: what "
        "this one asks is not carried out any more. End it; if both are meant to run, give each "
        "a task of its own"
    )


def _is_guarded(session: Session) -> bool:
    changes = session.role in (ROLE_CHIEF, ROLE_WORKER)
    return bool(changes and session.task.job and session.process)


def _place(task: Task) -> _Place:
    return task.job, task.index
