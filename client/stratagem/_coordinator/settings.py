"""What the user of a coordinator may set."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem_proto.errors import InvalidArgumentError


@dataclass(frozen=True)
class CoordinatorSettings:
    """How a coordinator schedules.

    Attributes:
        queue_size: How many functions may wait before `schedule` does.
        start_delay: Seconds by which each worker starts after the one before it.
        longest_start_delay: The most seconds that a worker starts after the first.
        watchdog_seconds: How long nothing may end until that is logged; None for ever.
        resolver_seconds: Time between looks at the resolver; None for one look.
        max_worker_losses: How many workers may be lost with a function; None for any number.
    """

    queue_size: int
    start_delay: float
    longest_start_delay: float
    watchdog_seconds: float | None
    resolver_seconds: float | None
    max_worker_losses: int | None

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            InvalidArgumentError: One is out of its range.
        """
        if self.queue_size < 1:
            raise InvalidArgumentError(
                f"queue_size is {self.queue_size}; at least 1 function must have room"
            )
        if self.start_delay < 0 or self.longest_start_delay < 0:
            raise InvalidArgumentError(
                f"start_delay is {self.start_delay} and longest_start_delay is "
                f"{self.longest_start_delay}; neither may be negative"
            )
        if self.watchdog_seconds is not None and self.watchdog_seconds <= 0:
            raise InvalidArgumentError(
                f"watchdog_seconds is {self.watchdog_seconds}; it must be positive, or "
                "None for no watchdog"
            )
        if self.resolver_seconds is not None and self.resolver_seconds <= 0:
            raise InvalidArgumentError(
                f"resolver_seconds is {self.resolver_seconds}; it must be positive, or "
                "None for workers that join by add_worker alone"
            )
        if self.max_worker_losses is not None and self.max_worker_losses < 1:
            raise InvalidArgumentError(
                f"max_worker_losses is {self.max_worker_losses}; it must be at least "
                "1, or None for functions that run again whatever becomes of workers"
            )

    def delay_of(self, worker: int) -> float:
        """Return how many seconds a worker starts later. Spec: FLT-12."""
        return min(worker * self.start_delay, self.longest_start_delay)
