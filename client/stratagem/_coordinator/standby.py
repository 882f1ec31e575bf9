"""Programs that stand by to take over from the one that coordinates."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

from stratagem._cluster.tasks import Membership
from stratagem._core.waiting import Wait
from stratagem._parameter_server.hosting.task import ServerLookup, member_of
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.names import process_name
from stratagem._ps_client.requests.coordination import await_vacancy, succeed
from stratagem._ps_client.session import Identity
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._resolvers import given_or_default
from stratagem_proto.errors import (
    CancelledError,
    InvalidArgumentError,
    SessionLostError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR
from stratagem_proto.v1.succession_pb2 import Incumbent
from stratagem_rpc.channel import Deadlines

_LOG = logging.getLogger("stratagem")

_LOOK_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
_WATCH_SECONDS = 1.0


class Candidate:
    """A program among several that could coordinate a cluster.

    Args:
        servers: The servers of the cluster, in sessions of this alone.
        program: Names the program.
        name: What people call it.
    """

    def __init__(self, servers: ServerGroup, program: bytes, name: str) -> None:
        self._servers, self._program, self._name = servers, program, name
        self._number = 0
        self._over = threading.Event()

    def await_turn(self) -> None:
        """Wait until no other program coordinates, and take its place.

        Raises:
            CancelledError: The program that coordinated meanwhile has come to its end.
        """
        # The first look does not wait, so that an incumbent is known before it ends.
        present, seconds = 0, 0.0
        with Wait(self._name, "its turn to coordinate") as wait:
            while not self._number:
                try:
                    answer = self._servers.call(self._first, await_vacancy(self._program, seconds))
                    _require_unfinished(answer.incumbent, present)
                    if answer.vacant:
                        self._take_place(answer.incumbent.number + 1)
                    present, seconds = answer.incumbent.number, _LOOK_SECONDS
                    wait.whom = f"{answer.waits_for or 'another program'}, which coordinates"
                except UnavailableError:
                    time.sleep(_PAUSE_SECONDS)
                except SessionLostError:
                    self._begin_anew()
        _LOG.info("%s coordinates, as number %d", self._name, self._number)
        threading.Thread(target=self._watch, name="stratagem-succession", daemon=True).start()

    @property
    def _first(self) -> int:
        return self._servers.used[0]

    def _take_place(self, number: int) -> None:
        """Take a place by its number on the first server, then on all, unless another one does."""
        others = [server for server in self._servers.called if server != self._first]
        while not self._announced(number, [self._first]):
            highest = self._announced(number, others)
            if not highest:
                self._number = number
                return
            # The first server has forgotten an incumbent, which may live and tell it.
            time.sleep(_LOOK_SECONDS)
            if self._announced(number, [self._first]):
                return
            number = highest + 1

    def _announced(self, number: int, servers: Iterable[int]) -> int:
        """Tell servers that this program has a place.

        Returns:
            0 if all agree; else the highest number of another one that has it.
        """
        incumbent = Incumbent(number=number, program=self._program, name=self._name)
        answers = self._servers.call_all({server: succeed(incumbent) for server in servers})
        found = [answer.incumbent for answer in answers.values()]
        return max((one.number for one in found if one.program != self._program), default=0)

    def _begin_anew(self) -> None:
        """Open other sessions, with servers that were started again."""
        former, self._servers = self._servers, deepcopy(self._servers)
        former.close()

    def _watch(self) -> None:
        """Tell servers that were started again, until another program has the place."""
        while not self._over.wait(_WATCH_SECONDS):
            try:
                successors = [self._successor(server) for server in self._servers.called]
            except SessionLostError:
                self._begin_anew()
                with suppress(StratagemError):
                    self._announced(self._number, self._servers.called)
                continue
            except StratagemError:
                continue
            if successor := next(filter(None, successors), ""):
                self._tell_superseded(successor)
                return

    def _successor(self, server: int) -> str:
        """Return who has the place now by what a server knows; "" if this program has it."""
        incumbent = self._servers.call(server, await_vacancy(self._program, 0.0)).incumbent
        if incumbent.number < self._number:
            self._announced(self._number, [server])
            return ""
        return "" if incumbent.program == self._program else incumbent.name

    def _tell_superseded(self, successor: str) -> None:
        if not self._over.is_set():
            _LOG.error(
                "%s coordinates in the place of %s, of which nothing was heard; end this program: "
                "servers carry out nothing that it asks",
                successor,
                self._name,
            )

    def leave(self, finished: bool) -> None:
        """Give the place up.

        Args:
            finished: Whether the program has come to its end. Else another one goes on at once.
        """
        self._over.set()
        left = Incumbent(number=self._number, name=self._name, finished=finished)
        with suppress(StratagemError):
            if self._number:
                self._servers.on_all(lambda: succeed(left))

    def close(self) -> None:
        self._over.set()
        self._servers.close()


def _require_unfinished(incumbent: Incumbent, present: int) -> None:
    if incumbent.finished and incumbent.number == present:
        raise CancelledError(
            f"{incumbent.name} has come to its end while this program stood by: there is nothing "
            "to take over"
        )


@contextmanager
def stand_by(
    cluster_resolver: ClusterResolver | None = None,
    *,
    token: str | None = None,
    connect_seconds: float = 60.0,
) -> Iterator[None]:
    """Wait until this program is the one that coordinates, and be it in the block.

    Start the same program twice. One goes on at once; the other one waits here, and goes on when
    nothing is heard of the first any more, within about two seconds of its end::

        with stratagem.coordinator.stand_by():
            strategy = stratagem.ParameterServerStrategy()
            coordinator = ClusterCoordinator(strategy)
            ...

    Make strategies in the block. From the moment in which another program goes on, servers refuse
    whatever this one and its functions on workers ask, by a `SupersededError`: a program that was
    suspended, or cut off, changes nothing when it wakes up.

    The end of the block is the end of the work, for which other programs wait no more. If it is
    left by an exception, the next one goes on at once.

    Args:
        cluster_resolver: Describes the cluster and this task, which is the chief; by default the
            environment variable TF_CONFIG does.
        token: Secret of the cluster, as of `ParameterServerStrategy`.
        connect_seconds: How long a server may be away until it is asked again.

    Raises:
        InvalidArgumentError: The cluster has no parameter servers, or this program is not its
            chief.
        CancelledError: The other program has come to its end: there is nothing to take over.
    """
    resolver = given_or_default(cluster_resolver)
    candidate = _candidate(resolver, token, connect_seconds)
    finished = False
    try:
        candidate.await_turn()
        yield
        finished = True
    except SystemExit as end:
        finished = end.code in (None, 0)
        raise
    finally:
        candidate.leave(finished)
        candidate.close()


def _candidate(resolver: ClusterResolver, token: str | None, connect_seconds: float) -> Candidate:
    if not resolver.cluster_spec():
        raise InvalidArgumentError(
            "a program stands by to coordinate a cluster, and there is none; give stand_by() a "
            "cluster_resolver, or set TF_CONFIG"
        )
    member = member_of(resolver)
    _require_chief(member)
    secret = resolver.cluster_token if token is None else token
    identity = Identity(
        ROLE_COORDINATOR,
        token=TOKEN_FILE.from_environment() if secret is None else secret,
        outlives_servers=True,
    )
    servers = ServerGroup(
        member.server_addresses,
        identity,
        Deadlines(connect=connect_seconds),
        locate=ServerLookup(resolver),
    )
    name = f"{member.name} (process {os.getpid()} of {socket.gethostname()})"
    return Candidate(servers, process_name(), name)


def _require_chief(member: Membership) -> None:
    if member.task_type != "chief":
        raise InvalidArgumentError(
            f"only the chief coordinates, but this program is {member.name}; start it as the "
            "chief, by the task of TF_CONFIG or of its cluster_resolver",
            task=member.name,
        )
