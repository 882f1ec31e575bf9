"""How many GPUs the workers of a coordinator have."""

from __future__ import annotations

from stratagem_proto.errors import InvalidArgumentError


class GpuCounts:
    """Lets workers in that have as many GPUs as those before.

    Any worker runs any function, with one replica for each of its GPUs, so that
    results of workers with other numbers would mean something else.

    Spec: PS2-7.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def admit(self, worker: int, count: int) -> None:
        """Take note of a worker.

        Args:
            worker: Its index; if it is known, it has been started again.
            count: How many GPUs it has.

        Raises:
            InvalidArgumentError: Another one has more or fewer.
        """
        for other, known in self._counts.items():
            if other != worker and known != count:
                raise InvalidArgumentError(
                    f"Mismatched number of GPUs per worker: /job:worker/task:{worker} "
                    f"has {count} and /job:worker/task:{other} has {known}; give the "
                    "strategy num_replicas_per_worker, or all workers as many by "
                    "CUDA_VISIBLE_DEVICES",
                    task=f"/job:worker/task:{worker}",
                )
        self._counts = {**self._counts, worker: count}

    def forget(self, worker: int) -> None:
        """Take note that a worker has left for good."""
        self._counts = {one: n for one, n in self._counts.items() if one != worker}
