"""A worker server for a program that runs one in its own process."""

from __future__ import annotations

from stratagem_proto.serving.task_servers import TaskServer, TaskSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings


def task_server(settings: TaskSettings) -> TaskServer:
    """Return a server of the worker job; it has not started.

    Raises:
        InvalidArgumentError: The address is none, there is no token, or other machines could reach
            it without `insecure`.
    """
    return WorkerServer(
        WorkerSettings(
            bind=settings.bind,
            job=settings.job,
            task=settings.task,
            token=settings.token,
            insecure=settings.insecure,
        )
    )
