"""The views of tasks as keys of etcd."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.serving.addresses import check_address
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiters.etcd_client import Client, EtcdClients, reason_of
from stratagem_psserver.replication.arbiters.register import Deadline
from stratagem_psserver.replication.arbiters.views import text_of, view_of
from stratagem_psserver.settings import ServerSettings


@dataclass(frozen=True)
class _Found:
    """What a member of etcd has.

    Attributes:
        client: Asks this member.
        view: The view; None if there is no key.
        revision: The revision of the last change of the key; 0 if there is no key.
    """

    client: Client
    view: View | None
    revision: int


class EtcdRegister:
    """A key of etcd with the view of one task.

    Members are tried in turn, beginning with the one that has answered last, until one answers what
    the key has. Only that one is sent the change, once.

    Args:
        address: "HOST:PORT[,HOST:PORT…]/PREFIX"; the key of task 0 of job "ps" is PREFIX/ps-0.
        settings: Those of a replica of the task.

    Raises:
        InvalidArgumentError: That is no such address, or there can be no client.
    """

    def __init__(self, address: str, settings: ServerSettings) -> None:
        members, _, prefix = address.partition("/")
        self._members = [_member(one, address) for one in members.split(",")]
        if not prefix.strip("/"):
            raise InvalidArgumentError(
                f"--arbiter etcd:{address} has no prefix, which keeps the keys of clusters apart; "
                "give etcd:HOST:PORT/PREFIX"
            )
        self._key = f"{prefix.strip('/')}/{settings.job}-{settings.task}"
        self.name = f"the key {self._key!r} of etcd at {members}"
        self._clients = EtcdClients()

    def read(self, deadline: Deadline) -> View | None:
        """Return the view of the key; None if there is no key.

        Raises:
            UnavailableError: No member answers.
            DataLossError: The key has no view.
        """
        return self._found(deadline).view

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        """Replace the view if it is `present`; return whether it was.

        Raises:
            UnavailableError: No member answers.
            DataLossError: The key has no view.
        """
        found = self._found(deadline)
        if found.view != present:
            return False
        found.client.timeout = deadline.left
        try:
            answer = found.client.transaction(self._change(found.revision, following))
        except self._clients.failures as error:
            raise self._unavailable([reason_of(error)]) from error
        return bool(answer.get("succeeded"))

    def close(self) -> None:
        """Close the connections."""
        self._clients.close()

    def _found(self, deadline: Deadline) -> _Found:
        reasons = []
        members = list(self._members)
        for tried, (host, port) in enumerate(members):
            # A share of the time for each member that is left, and one for the change.
            seconds = deadline.left / (len(members) - tried + 1)
            client = self._clients.client(host, port, seconds)
            try:
                entries = client.get(self._key.encode(), metadata=True)
            except self._clients.failures as error:
                reasons.append(f"{host}:{port}: {reason_of(error)}")
                continue
            self._members = members[tried:] + members[:tried]
            return self._as_found(client, entries)
        raise self._unavailable(reasons)

    def _as_found(self, client: Client, entries: Sequence[tuple[bytes, Any]]) -> _Found:
        if not entries:
            return _Found(client, None, 0)
        ((value, facts),) = entries
        view = view_of(value.decode(errors="replace"), self.name)
        return _Found(client, view, int(facts["mod_revision"]))

    def _change(self, revision: int, view: View) -> dict[str, Any]:
        key = _base64(self._key)
        condition = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        change = {"request_put": {"key": key, "value": _base64(text_of(view))}}
        return {"compare": [condition], "success": [change], "failure": []}

    def _unavailable(self, reasons: Sequence[str]) -> UnavailableError:
        return UnavailableError(
            f"{self.name} cannot be used: {'; '.join(reasons)}. See that most members of etcd run, "
            "and that this host reaches one of them"
        )


def _member(text: str, address: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        check_address(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"--arbiter etcd:{address} names {text!r} as a member of etcd; give "
            "etcd:HOST:PORT[,HOST:PORT...]/PREFIX"
        ) from error
    return host.strip("[]"), int(port)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
