"""Servers and their tasks, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from stratagem import ServerTasks
from stratagem_deploy.watching.amounts import amount

_COLUMNS = ("server", "address", "tasks", "bytes", "calls/s", "")


def facts_of(servers: Iterable[ServerTasks]) -> list[dict[str, Any]]:
    """Return what is known of servers, for JSON."""
    return [
        {
            "server": server.number,
            "address": server.address,
            "draining": server.is_draining,
            "tasks": [
                {
                    "task": task.task,
                    "bytes": task.nbytes,
                    "calls_per_second": round(task.calls_per_second, 1),
                }
                for task in server.tasks
            ],
        }
        for server in servers
    ]


def table_of(servers: Iterable[ServerTasks]) -> Table:
    """Return the same as a table."""
    table = Table(*_COLUMNS, box=box.SIMPLE_HEAD)
    for server in servers:
        table.add_row(
            str(server.number),
            server.address,
            ", ".join(f"ps:{task.task}" for task in server.tasks),
            amount(sum(task.nbytes for task in server.tasks)),
            f"{sum(task.calls_per_second for task in server.tasks):.0f}",
            _state(server),
        )
    return table


def _state(server: ServerTasks) -> str:
    """Return whether a server is to have no tasks, and whether it still has some."""
    if not server.is_draining:
        return ""
    return "draining" if server.tasks else "drained"
