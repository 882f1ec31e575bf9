"""An actor of Ray that is restarted: `python -m benchmarks.crashes.ray`."""

from __future__ import annotations

import os
import signal

import ray

from benchmarks.crashes.trial import UPDATES, found


class Server:
    """A server of one number."""

    def __init__(self) -> None:
        self._count = 0.0

    def add(self) -> None:
        """Add 1."""
        self._count += 1

    def read(self) -> float:
        """Return the sum."""
        return self._count

    def pid(self) -> int:
        """Return its process."""
        return os.getpid()


def main() -> None:
    """Add to a number, kill the actor, and tell what is there."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    server = ray.remote(max_restarts=-1, max_task_retries=-1)(Server).remote()
    for _ in range(UPDATES):
        ray.get(server.add.remote())
    os.kill(ray.get(server.pid.remote()), signal.SIGKILL)
    found(lambda: ray.get(server.add.remote()), lambda: ray.get(server.read.remote())).tell()


if __name__ == "__main__":
    main()
