"""The display of a script's run, for people or for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from stratagem_deploy.processes.process import Process
from stratagem_deploy.processes.transcript import Transcript


class Display(ABC):
    """Shows the output and the events of the processes of a run as they come."""

    @abstractmethod
    def of_worker(self, name: str, index: int) -> tuple[Transcript, Transcript]:
        """Return where the two outputs of a worker go, perhaps to the same."""

    @abstractmethod
    def of_server(self, name: str, index: int) -> Callable[[str], None]:
        """Return what shows a line of a server's log."""

    @abstractmethod
    def started(self, cluster: Mapping[str, Sequence[str]], credentials: Mapping[str, str]) -> None:
        """Show how `stratagem status` and its like reach the servers.

        Args:
            cluster: The addresses of the tasks by job.
            credentials: The settings by which they may, by name, while the run lasts.
        """

    @abstractmethod
    def restarts(self, process: Process, restart: int, most: int) -> None:
        """Show that a process failed and will be started again.

        Args:
            process: What failed.
            restart: Which restart of the run it is, from 1 on.
            most: How many there may be.
        """

    @abstractmethod
    def rejoins(self, process: Process, part: str) -> None:
        """Show that a process has ended, and will be started again in another part.

        Args:
            process: A replica of a server, or a program that coordinates.
            part: "the backup", or what else it is then.
        """

    @abstractmethod
    def failed(self, process: Process) -> None:
        """Show which process failed first, of those that are not started again."""

    @abstractmethod
    def ended(self, exit_code: int, problem: str) -> None:
        """Show how the run has ended.

        Args:
            exit_code: That of the run.
            problem: Why there were no workers; "" if there were.
        """
