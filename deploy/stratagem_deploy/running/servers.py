"""The servers of a run, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set

from stratagem_deploy.clusters.placement import servers_with_tasks
from stratagem_deploy.clusters.replicated_server import replicated
from stratagem_deploy.clusters.replication import arbiter_folder, replica_options
from stratagem_deploy.clusters.server_process import (
    ServerCommand,
    ServerProcess,
    patience_for_restarts,
)
from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_deploy.output.display import Display
from stratagem_deploy.processes.addresses import ReservedAddresses
from stratagem_deploy.processes.process import Process, equal_order_of_sets, share_of_cores
from stratagem_deploy.running.credentials import RunCredentials
from stratagem_deploy.running.settings import ScriptSettings
from stratagem_proto.configuration.model import variable

_ROUTINE_LEVELS = {"debug", "info"}


def is_routine(line: str) -> bool:
    """Return whether a line is only interesting after a failure."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get("level") in _ROUTINE_LEVELS


class RunServers:
    """Makes the servers of a run, and knows what each of their processes is.

    Args:
        settings: Those of the run.
        credentials: What the processes show each other.
        display: Shows what they write.
        on_end: Called from another thread whenever a process has ended.

    Attributes:
        tasks: The task that each process of a parameter server began with, by its name.
        stateless: The names of the worker servers.
    """

    def __init__(
        self,
        settings: ScriptSettings,
        credentials: RunCredentials,
        display: Display,
        on_end: Callable[[Process], None],
    ) -> None:
        self._settings, self._credentials = settings, credentials
        self._display, self._on_end = display, on_end
        self._arbiter = arbiter_folder(settings.storage, credentials.token_file.parent)
        self._processes: list[ServerProcess] = []
        self._count = 0
        self.tasks: dict[str, str] = {}
        self.stateless: Sequence[str] = ()

    @property
    def most(self) -> int:
        """How many parameter servers the run needs, with those that an earlier run has added."""
        if not self._settings.movable:
            return self._settings.ps
        return max([self._settings.ps, *(1 + number for number in self._with_tasks())])

    def is_empty(self, name: str) -> bool:
        """Return whether the parameter server of a process has no task of the cluster."""
        number = int(self.tasks[name].removeprefix("ps:"))
        return self._settings.movable and number not in self._with_tasks()

    def _with_tasks(self) -> Set[int]:
        return servers_with_tasks(self._arbiter, self._settings.ps)

    def start(self, names: Sequence[str]) -> None:
        """Start processes again that have ended."""
        for process in self._processes:
            if process.name in names:
                process.start()

    def new_server(self, where: ReservedAddresses) -> RestartableServer:
        """Return the next parameter server, not started."""
        index, self._count = self._count, self._count + 1
        settings, credentials = self._settings, self._credentials
        own = {
            **(patience_for_restarts() if settings.max_restarts else {}),
            **self._file_of_settings(),
            **credentials.certificates("server", "ps", index),
        }

        def new_replica(address: str, number: int) -> RestartableServer:
            options = replica_options(settings.replicas, number, self._arbiter, settings.movable)
            command = ServerCommand(
                *("ps", index, address, credentials.token_file),
                options=(*settings.storage.options, *options),
                environment=own,
                replica=number if settings.replicas > 1 else None,
            )
            self.tasks[command.name] = f"ps:{index}"
            return self._process(command)

        return replicated(f"ps:{index}", where.replicas, credentials.token, new_replica)

    def new_workers(self, addresses: Sequence[ReservedAddresses]) -> Sequence[RestartableServer]:
        """Return the workers that run functions of a coordinator, not started."""
        cores = share_of_cores(len(addresses))
        own = {**cores, **equal_order_of_sets(), **self._file_of_settings()}
        credentials = self._credentials
        servers = [
            self._process(
                ServerCommand(
                    *("worker", index, str(where), credentials.token_file),
                    environment={**own, **credentials.certificates("worker", "worker", index)},
                )
            )
            for index, where in enumerate(addresses)
        ]
        self.stateless = [server.name for server in servers]
        return servers

    def _file_of_settings(self) -> dict[str, str]:
        return {variable("config"): self._settings.config} if self._settings.config else {}

    def _process(self, command: ServerCommand) -> ServerProcess:
        show = self._shown_log(command.name, command.task)
        process = ServerProcess(command, show=show, on_end=self._on_end)
        self._processes.append(process)
        return process

    def _shown_log(self, name: str, index: int) -> Callable[[str], None]:
        show = self._display.of_server(name, index)
        if self._settings.verbose:
            return show
        return lambda line: None if is_routine(line) else show(line)
