"""What became of a checkpoint that was restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stratagem_proto.errors import FailedPreconditionError


class UnusedValues(Protocol):
    """What a checkpoint has that nothing has taken yet."""

    def names(self) -> list[str]:
        """Return the names of the values."""


class RestoreStatus:
    """What became of a checkpoint that was restored. Spec: CKP-2.

    Args:
        deferred: What nothing has taken yet.
        missing: The names that this program had, and the checkpoint has not.
        extra: What `save` was given to keep besides values.
        position: How many steps of `strategy.steps` this task had taken.
        unknown: Why nobody knows how far this process is, as a clause; empty if it is known.

    Attributes:
        missing: The names that this program had when it restored, and that the checkpoint lacks.
            There are none unless `strict=False`.
    """

    def __init__(
        self,
        deferred: UnusedValues,
        missing: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
        position: int = 0,
        unknown: str = "",
    ) -> None:
        self._deferred = deferred
        self.missing = list(missing)
        self._extra: Mapping[str, Any] = extra or {}
        self._position = position
        self._unknown = unknown

    @property
    def extra(self) -> Mapping[str, Any]:
        """What `save` was given to keep besides values.

        Where this process joins a run under way, it is that of the latest checkpoint.

        Raises:
            FailedPreconditionError: The run has gone on since, and this process would take for its
                own place what is that of the chief then.
        """
        self._require_known("extra")
        return self._extra

    @property
    def position(self) -> int:
        """How many steps of `strategy.steps` this task has taken; that loop begins there.

        Raises:
            FailedPreconditionError: The task has trained in this run, and counted no steps.
        """
        self._require_known("position")
        return self._position

    def _require_known(self, what: str) -> None:
        if self._unknown:
            raise FailedPreconditionError(f"{what!r} does not say where to go on: {self._unknown}")

    @property
    def unused(self) -> list[str]:
        """The names for which nothing has been made so far."""
        return self._deferred.names()

    def assert_consumed(self) -> RestoreStatus:
        """Check that everything in the checkpoint is used, and everything here was in it.

        Returns:
            This status.

        Raises:
            FailedPreconditionError: Something is not.
        """
        if self.unused:
            raise FailedPreconditionError(
                f"the checkpoint has {', '.join(map(repr, self.unused))}, for which "
                "this program has made no variable; make it under the same name, or "
                "leave the check out"
            )
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Check that the checkpoint had what this program had when it restored.

        Returns:
            This status.

        Raises:
            FailedPreconditionError: It lacks something, which `strict=False` left as it was.
        """
        if self.missing:
            raise FailedPreconditionError(
                f"the checkpoint has no {', '.join(map(repr, self.missing))}, which were left as "
                "they were; restore into the program that was saved, or leave the check out"
            )
        return self

    def expect_partial(self) -> RestoreStatus:
        """Return this status: what is not used is not warned of, with or without this call."""
        return self
