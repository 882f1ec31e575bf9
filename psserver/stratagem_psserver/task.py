"""A parameter server for a program that runs one in its own process."""

from __future__ import annotations

from stratagem_proto.serving.task_servers import TaskServer, TaskSettings
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings


def task_server(settings: TaskSettings) -> TaskServer:
    """Return a server of the job ps, which has not started.

    Raises:
        InvalidArgumentError: The address is not valid, or other machines could reach it without
            `insecure` or without a token.
    """
    return ParameterServer(
        ServerSettings(
            bind=settings.bind,
            job=settings.job,
            task=settings.task,
            token=settings.token,
            insecure=settings.insecure,
        )
    )
