"""What holds the workers of a cluster together, and how they have fared with it.

Each optimizer's variables are a group with a consistency of its own. A string is short for one:
"async", "bounded" or "sync".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.protocol import check_contributors

if TYPE_CHECKING:
    from stratagem_proto.v1 import consistency_pb2 as pb

__all__ = ["Async", "Bounded", "Consistency", "ConsistencyReport", "Sync", "WorkerReport"]


@dataclass(frozen=True)
class Consistency:
    """What holds workers together: `Async`, `Bounded` or `Sync`."""

    _name: ClassVar[str]
    """What is short for it."""
    _is_free: ClassVar[bool] = False
    """Whether nobody waits, so that the permit for a step may come with the answer to the push
    before it."""
    _closes_steps: ClassVar[bool] = False
    """Whether workers contribute to one update, which is closed once it is applied."""

    def _check(self, num_workers: int) -> None:
        """Check that this number of workers can have it.

        Raises:
            InvalidArgumentError: Its steps need more.
        """

    def _permits_first(self, num_workers: int) -> bool:
        """Return whether a worker reads values for a step only once it may take it."""
        return False

    def _enough(self, num_workers: int) -> int:
        """Return how many contributions close a step; 0 for those of all workers."""
        return 0

    def _fields(self) -> dict[str, int]:
        """Return the fields of its message, besides the mode."""
        return {}

    @classmethod
    def _of(cls, message: pb.Consistency) -> Consistency:
        """Return what has such a message."""
        return cls()


@dataclass(frozen=True)
class Async(Consistency):
    """Nobody waits: each worker's gradient is applied when it comes."""

    _name = "async"
    _is_free = True

    def __reduce__(self) -> tuple[type[Async], tuple[()]]:
        # Some workers load nothing that has to be made without a call.
        return Async, ()


@dataclass(frozen=True)
class Bounded(Consistency):
    """Gradients are applied when they come, but the fast wait for the slow.

    No worker reads values for a step while it is more than `steps` steps ahead of the slowest. This
    is the stale-synchronous parallelism of Ho et al., 2013.

    Args:
        steps: How far ahead a worker may be; 0 keeps them in lockstep.

    Raises:
        InvalidArgumentError: `steps` is negative.
    """

    _name = "bounded"
    steps: int = 1

    def __post_init__(self) -> None:
        _require_number("steps", self.steps, least=0)

    def _permits_first(self, num_workers: int) -> bool:
        return True

    def _fields(self) -> dict[str, int]:
        return {"bound": self.steps}

    @classmethod
    def _of(cls, message: pb.Consistency) -> Consistency:
        return cls(message.bound)


@dataclass(frozen=True)
class Sync(Consistency):
    """All take a step together: their gradients are added and applied once.

    Args:
        replicas_to_aggregate: How many contributions close a step; each worker makes one, for all
            its replicas. None for those of all workers. With fewer, the others are backups: who
            comes later is not counted in that step, and goes on with the next one. (Chen et al.,
            2016)

    Raises:
        InvalidArgumentError: `replicas_to_aggregate` is less than 1.
    """

    _name = "sync"
    _closes_steps = True
    replicas_to_aggregate: int | None = None

    def __post_init__(self) -> None:
        if self.replicas_to_aggregate is not None:
            _require_number("replicas_to_aggregate", self.replicas_to_aggregate, least=1)

    def _check(self, num_workers: int) -> None:
        check_contributors(self.replicas_to_aggregate or 0, num_workers)

    def _permits_first(self, num_workers: int) -> bool:
        # A step may be over without this worker.
        return bool(self._enough(num_workers))

    def _enough(self, num_workers: int) -> int:
        enough = self.replicas_to_aggregate or 0
        return enough if enough < num_workers else 0

    def _fields(self) -> dict[str, int]:
        return {"replicas_to_aggregate": self.replicas_to_aggregate or 0}

    @classmethod
    def _of(cls, message: pb.Consistency) -> Consistency:
        return cls(message.replicas_to_aggregate or None)


@dataclass(frozen=True)
class WorkerReport:
    """How one worker has fared with one optimizer since the servers started.

    Attributes:
        steps: Number of the last step that it finished. Where numbers were left out, at changes of
            consistency for instance, it has taken fewer steps.
        dropped: Contributions that came too late for their step.
        staleness: How many of its asynchronous and bounded updates were so stale: by the least
            number of steps that others finished while it took one, in powers of two. `{0: 7, 1: 2,
            2: 1}` are 7 with none, 2 with one, and 1 with two or three.
        gone: How it went away; empty while it is there.
    """

    steps: int
    dropped: int
    staleness: Mapping[int, int]
    gone: str


@dataclass(frozen=True)
class ConsistencyReport:
    """What holds for one optimizer, and how the workers fare.

    Attributes:
        consistency: What holds for the newest step.
        since: The first step for which it holds.
        workers: Those that have begun a step, by name, as in "/job:worker/task:1".
        completed: Number of the newest synchronous step that has all contributions that it needs; 0
            if there is none. A worker that is started again goes on with the step after it.
    """

    consistency: Consistency
    since: int
    workers: Mapping[str, WorkerReport]
    completed: int = 0


KINDS: Mapping[str, type[Consistency]] = {kind._name: kind for kind in (Async, Bounded, Sync)}


def consistency_from(value: object) -> Consistency:
    """Return a consistency, or the one that a string is short for.

    Raises:
        InvalidArgumentError: There is none of that name.
        InvalidTypeError: `value` is neither.
    """
    if isinstance(value, Consistency) and type(value) in KINDS.values():
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"consistency must be {', '.join(KINDS)} or a value of "
            f"stratagem.consistency, not {value!r}"
        )
    if value not in KINDS:
        raise InvalidArgumentError(f"consistency must be one of {', '.join(KINDS)}, not {value!r}")
    return KINDS[value]()


def mean_staleness(now: Mapping[int, int], before: Mapping[int, int]) -> float | None:
    """Return how stale updates were on average between two looks, as of `WorkerReport.staleness`.

    None without any, and if servers were started again in between.
    """
    fresh = {steps: count - before.get(steps, 0) for steps, count in now.items()}
    number = sum(fresh.values())
    if number <= 0 or min(fresh.values()) < 0:
        return None
    return sum(steps * count for steps, count in fresh.items()) / number


def _require_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise InvalidArgumentError(f"{name} must be {least} or more, not {value!r}")
