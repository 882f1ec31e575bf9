"""The part of a program that decides, as the chief, which replicas serve."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import replace

from stratagem._ps_client.arbitration.caller import ReplicaCaller
from stratagem._ps_client.arbitration.register import Outgoing, ViewRegister
from stratagem._ps_client.connections.session import Identity, handshake
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.arbitration_pb2 import ArbitrateResponse, ChiefIntroduction
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, Task

_LOG = logging.getLogger("stratagem")


class TaskArbitration:
    """Decides about one task while it is used, by what it has decided before. Thread-safe.

    Args:
        introduction: Who decides, and about which task.
        addresses: Those of all replicas of the task.
        token: The secret of the cluster.
    """

    def __init__(
        self, introduction: ChiefIntroduction, addresses: Sequence[str], token: str
    ) -> None:
        self._introduction, self._addresses, self._token = introduction, addresses, token
        self._register = ViewRegister(addresses)
        self._callers: dict[str, ReplicaCaller] = {}
        self._users = 0
        self._told = 0, ""
        # Events come in the threads of all callers.
        self._deciding = threading.Lock()

    def begin(self) -> None:
        """Call the replicas, unless they are called already."""
        with self._deciding:
            self._users += 1
            if self._users > 1:
                return
            for address in self._addresses:
                caller = ReplicaCaller(address, self._introduction, self._token, self)
                self._callers[address] = caller
                caller.start()

    def end(self) -> None:
        """Call them no more, if nobody else has them called."""
        with self._deciding:
            self._users -= 1
            callers = [*self._callers.values()] if not self._users else []
            for caller in callers:
                self._register.left(caller.address)
                del self._callers[caller.address]
        for caller in callers:
            caller.stop()

    def received(self, caller: ReplicaCaller, message: ArbitrateResponse) -> None:
        """Take a message of a replica."""
        with self._deciding:
            if self._callers.get(caller.address) is caller:
                self._post(self._decided(caller.address, message))
                self._tell()

    def _tell(self) -> None:
        """Tell people whether this program decides, once."""
        told = self._register.term, self._register.obstacle
        if told == self._told:
            return
        server = self._introduction.server
        task = f"/job:{server.job}/task:{server.index}"
        if told[1]:
            _LOG.warning("cannot decide which replica of %s serves: %s", task, told[1])
        elif told[0] != self._told[0]:
            _LOG.info("decides which replica of %s serves", task)
        self._told = told

    def _decided(self, address: str, message: ArbitrateResponse) -> list[Outgoing]:
        if message.HasField("question"):
            return self._register.asked(address, message.question)
        if message.report.inquiry:
            return self._register.reported(address, message.report)
        return self._register.joined(address, message.report)

    def ended(self, caller: ReplicaCaller) -> None:
        """Note that the call of a replica has ended."""
        with self._deciding:
            if self._callers.get(caller.address) is caller:
                self._post(self._register.left(caller.address))

    def _post(self, messages: Sequence[Outgoing]) -> None:
        for address, message in messages:
            self._callers[address].send(message)


class Arbitration:
    """Decides about the tasks of a group of servers, if they leave it to the chief. Thread-safe.

    What was decided is kept as long as the process lives, for all groups of the same servers.

    Args:
        addresses: The address of each server, or those of its replicas with commas between them.
        identity: Who this process is; only the chief decides.
    """

    def __init__(self, addresses: Sequence[str], identity: Identity) -> None:
        self._tasks = [
            (task, address)
            for task, address in enumerate(addresses)
            if identity.role == ROLE_CHIEF and "," in address
        ]
        self._identity = identity
        self._begun: list[TaskArbitration] = []
        self._is_stopped = not self._tasks
        self._process = os.getpid()
        self._starting = threading.Lock()

    def start(self) -> None:
        """Call all replicas, unless they are called already."""
        if self._begun or self._is_stopped:
            return
        with self._starting:
            if not self._begun and not self._is_stopped:
                found = [_arbitration_of(*task, self._identity) for task in self._tasks]
                for task in found:
                    task.begin()
                self._begun = found

    def stop(self) -> None:
        """Call them no more; a repetition does nothing, nor does a fork of the process."""
        if os.getpid() != self._process:
            return
        with self._starting:
            self._is_stopped, begun = True, self._begun
            self._begun = []
        for task in begun:
            task.end()


# By process, task, addresses and who this process is: a fork knows nothing of what its parent
# decides after it.
_ARBITRATIONS: dict[tuple[int, int, str, Identity], TaskArbitration] = {}
_FINDING = threading.Lock()


def _arbitration_of(task: int, address: str, identity: Identity) -> TaskArbitration:
    key = os.getpid(), task, address, replace(identity, client=b"", outlives_servers=False)
    with _FINDING:
        if key not in _ARBITRATIONS:
            _ARBITRATIONS[key] = new_arbitration(task, address, identity)
        return _ARBITRATIONS[key]


def new_arbitration(task: int, address: str, identity: Identity) -> TaskArbitration:
    """Return what decides about a task, and knows nothing of it yet.

    Args:
        task: Its index in the job ps.
        address: The addresses of its replicas, with commas between them.
        identity: Who decides.
    """
    addresses = replica_addresses(f"/job:ps/task:{task}", address)
    introduction = ChiefIntroduction(
        asking=handshake(identity, b""),
        chief=secrets.token_bytes(SESSION_ID_BYTES),
        server=Task(job="ps", index=task),
        replicas=len(addresses),
    )
    return TaskArbitration(introduction, addresses, identity.token)
