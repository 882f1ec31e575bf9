"""Clients that ended without closing their sessions, for people who look for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratagem_proto.v1.status_pb2 import LostClient
from stratagem_psserver.exactly_once.session import Session

_MOST = 100

# A cluster that goes on with fewer clients is not told of the others for ever.
_TOLD_SECONDS = 600.0


@dataclass(frozen=True)
class _Loss:
    session: Session
    why: str
    time: float


class LostClients:
    """The clients with a task whose sessions ended by themselves, until they come back."""

    def __init__(self) -> None:
        self._losses: dict[str, _Loss] = {}

    def add(self, session: Session, why: str, now: float) -> None:
        """Note that a session ended that its client did not close."""
        if not session.task.job:
            return
        self._losses[session.label] = _Loss(session, why, now)
        if len(self._losses) > _MOST:
            del self._losses[next(iter(self._losses))]

    def discard(self, session: Session) -> None:
        """Note that a client has a session again, or has none any more by its own wish."""
        self._losses.pop(session.label, None)

    def report(self, now: float) -> Iterator[LostClient]:
        """Yield the messages that describe them."""
        for loss in self._losses.values():
            if now - loss.time <= _TOLD_SECONDS:
                yield LostClient(
                    role=loss.session.role,
                    task=loss.session.task,
                    why=loss.why,
                    seconds=now - loss.time,
                    doing=loss.session.doing,
                )
