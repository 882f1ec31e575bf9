"""Servers that a program runs in its own process.

The client and the servers do not import each other. The client starts a server by the name of its
module, and both use the classes here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from stratagem_proto.errors import UnimplementedError

# The modules with a function `task_server(settings)`, by the job that they serve.
_MODULES = {"ps": "stratagem_psserver.server", "worker": "stratagem_worker.server"}


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task's server.

    Attributes:
        job: The job of the task.
        task: The index of the task within the job.
        bind: The "host:port" to listen on; port 0 takes a free one.
        token: The secret of the cluster; "" for none.
        insecure: Whether other machines may connect although nothing is encrypted.
    """

    job: str
    task: int
    bind: str
    token: str = field(default="", repr=False)
    insecure: bool = False


class TaskServer(Protocol):
    """A server of one task.

    Attributes:
        address: The "host:port" where it listens; "" before it has started.
    """

    address: str

    def start(self) -> None:
        """Bind and serve; may be called once."""

    def stop(self, grace: float | None = None) -> None:
        """Stop; a repetition does nothing.

        Args:
            grace: Seconds for running calls.
        """

    def join(self) -> None:
        """Wait until it has stopped."""


class _Module(Protocol):
    def task_server(self, settings: TaskSettings) -> TaskServer:
        """Return a server that has not started."""


def task_server(settings: TaskSettings) -> TaskServer:
    """Return the server of a task, which has not started.

    Raises:
        UnimplementedError: There is no server for its job.
        InvalidArgumentError: The address is not valid, or other machines could reach it without
            `insecure` or without a token.
    """
    if settings.job not in _MODULES:
        raise UnimplementedError(
            f"there is no server for /job:{settings.job}/task:{settings.task}: only "
            f"the jobs {' and '.join(_MODULES)} have servers; other tasks run the "
            "program of their strategy instead"
        )
    module = cast(_Module, import_module(_MODULES[settings.job]))
    return module.task_server(settings)
