"""Servers with a log each, between which tasks move."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from benchmarks.chaos.launcher import DRAIN_SECONDS, START_SECONDS, Launcher
from benchmarks.chaos.roles import Role, Victim, victim_of
from benchmarks.chaos.strikes import Kind, Strike
from stratagem import Servers, StratagemError
from stratagem._ps_client.session import Identity
from stratagem._ps_client.survey import ServerCalls, surveyed
from stratagem_deploy.clusters.plan import replica_options
from stratagem_deploy.watching.asking import ServerPlace, ask
from stratagem_deploy.watching.tables import variables_of
from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.servers_pb2 import DescribeServerResponse
from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR

# So many are there at most, each of which begins with a task, and at least.
_SERVERS, _LEAST = 4, 2
# A move that takes longer, because one of its servers is hurt, is begun again.
_MOVE_SECONDS = 60.0
_POLL_SECONDS = 0.5
_ASK_SECONDS = 30.0


class MovableServers:
    """Four servers, of which some are away at times.

    Args:
        launcher: Starts processes.
    """

    def __init__(self, launcher: Launcher) -> None:
        hosts = [launcher.host(f"ps-{number}") for number in range(_SERVERS)]
        log = launcher.folder / "log"
        log.mkdir()
        common = (
            *replica_options(1, 0, launcher.folder / "arbiter", movable=True),
            *("--durability", "log", "--durability-folder", str(log)),
        )
        self.addresses = [host.address for host in hosts]
        self.servers = [
            launcher.process("ps", number, host, (*common, "--advertise", host.address))
            for number, host in enumerate(hosts)
        ]
        self.members = set(range(_SERVERS))
        self._token, operator = launcher.token, Identity(ROLE_OPERATOR, token=launcher.token)
        self._calls = ServerCalls(operator)
        self._moves = Servers(lambda: self.addresses, operator)
        self.roles: Sequence[Role] = [Member(self)]
        self.kinds: Sequence[Kind] = [Removing(self), Adding(self)]

    @property
    def missing(self) -> list[str]:
        """The names of servers that do not run, and should."""
        return [self.servers[n].name for n in sorted(self.members) if not self.servers[n].runs]

    def start(self, number: int) -> None:
        """Start a server, and give it its share of the tasks, unless it comes with tasks."""
        self.servers[number].start()
        self.servers[number].await_serving(START_SECONDS)
        _persist(lambda: self._moves.add(self.addresses[number], _MOVE_SECONDS))

    def remove(self, number: int) -> None:
        """Give all tasks of a server to the others, and end it."""
        _persist(lambda: self._moves.drain(number, _MOVE_SECONDS))
        self.servers[number].stop(DRAIN_SECONDS)

    def wrong(self) -> list[str]:
        """Return which tasks are not served by one server."""
        answers = self._calls.describe(self.addresses).values()
        served = Counter(
            task.task
            for answer in answers
            if isinstance(answer, DescribeServerResponse)
            for task in answer.tasks
        )
        return [
            f"ps:{task} is served by {served[task]} servers"
            for task in range(_SERVERS)
            if served[task] != 1
        ]

    def versions(self) -> Mapping[str, int]:
        """Return the versions of all variables, wherever they are.

        Raises:
            UnavailableError: A task does not answer.
        """
        views = surveyed(self._calls, self.addresses).views
        places = [ServerPlace(view.primary.address, f"ps:{task}") for task, view in views.items()]
        answers = ask(places, self._token, _ASK_SECONDS, with_variables=True)
        if missed := [answer.problem for answer in answers if answer.is_missed]:
            raise UnavailableError("; ".join(missed))
        return {each["name"]: each["version"] for each in variables_of(answers)}


def _persist(act: Callable[[], object]) -> None:
    """Do something again until it is not refused because a server is hurt or takes a task."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            act()
            return
        except StratagemError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)


class Member:
    """Any of the servers that are there.

    Args:
        servers: All of them.
    """

    name = "server"

    def __init__(self, servers: MovableServers) -> None:
        self._servers = servers
        self.tasks: Sequence[str] = _names()

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return the server that begins with a task; None if it is away."""
        number = self.tasks.index(task)
        if number not in self._servers.members:
            return None

        def revive() -> None:
            self._servers.start(number)

        return victim_of(self._servers.servers[number], f"ps-{number}", revive)


class Removing:
    """Takes a server away: its tasks go to the others, as by `stratagem servers drain`.

    Args:
        servers: All of them.
    """

    name = "server removed"

    def __init__(self, servers: MovableServers) -> None:
        self._servers = servers
        self.tasks: Sequence[str] = _names()

    def strike(self, task: str, chance: random.Random) -> Strike | None:
        """Begin to take it away; None if it is away, or too few would be left."""
        number, members = self.tasks.index(task), self._servers.members
        if number not in members or len(members) == _LEAST:
            return None
        members.remove(number)
        return Strike(task, lambda is_over: self._servers.remove(number))


class Adding:
    """Adds a server in the place of one that was taken away, as by `stratagem servers add`.

    Args:
        servers: All of them.
    """

    name = "server added"

    def __init__(self, servers: MovableServers) -> None:
        self._servers = servers
        self.tasks: Sequence[str] = _names()

    def strike(self, task: str, chance: random.Random) -> Strike | None:
        """Begin to add it; None if it is there."""
        number, members = self.tasks.index(task), self._servers.members
        if number in members:
            return None
        members.add(number)
        return Strike(task, lambda is_over: self._servers.start(number))


def _names() -> Sequence[str]:
    return [f"ps:{number}" for number in range(_SERVERS)]
