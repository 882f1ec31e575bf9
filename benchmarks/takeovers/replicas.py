"""The two replicas of a server, as they describe themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy.watching.asking import ServerPlace, ask
from stratagem_deploy.watching.tables import variables_of
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.replication_pb2 import ReplicationStatus, Standing
from stratagem_proto.v1.status_pb2 import GetStatusResponse

_PATIENCE_SECONDS = 120.0


class Answer(NamedTuple):
    """What a replica says of itself."""

    status: GetStatusResponse
    replication: ReplicationStatus

    @property
    def has_backup(self) -> bool:
        """Whether the view that it knows of names a backup."""
        return self.replication.view.HasField("backup")


class Replicas:
    """The replicas of one server of a cluster.

    Args:
        resolver: The cluster.
        index: The index of the server.
    """

    def __init__(self, resolver: ClusterResolver, index: int = 0) -> None:
        self.index = index
        address = resolver.cluster_spec().task_address("ps", index)
        self._token = resolver.cluster_token or ""
        self._places = [
            ServerPlace(each, f"ps:{index}", replica=number)
            for number, each in enumerate(replica_addresses(f"/job:ps/task:{index}", address))
        ]

    def answers(self, seconds: float = 5.0) -> list[Answer]:
        """Return what those say that answer in so many seconds."""
        return [
            Answer(each.status, each.replication)
            for each in ask(self._places, self._token, seconds)
            if each.status and each.replication
        ]

    def complete(self) -> list[Answer]:
        """Return what both say, the primary first; nothing if one of them would be missed."""
        answers = sorted(self.answers(0.5), key=lambda each: each.replication.standing)
        standings = [each.replication.standing for each in answers]
        is_complete = standings == [Standing.STANDING_PRIMARY, Standing.STANDING_BACKUP]
        return answers if is_complete and answers[0].has_backup else []

    def versions(self) -> Mapping[str, int]:
        """Return the versions of all variables that the primary has."""
        answers = ask(self._places, self._token, _PATIENCE_SECONDS, with_variables=True)
        return {each["name"]: each["version"] for each in variables_of(answers)}

    def primary(self) -> Answer:
        """Return what the primary says, of a pair that is complete.

        Raises:
            TimeoutError: There is no such pair.
        """
        return self._awaited(0)

    def await_equal(self) -> None:
        """Wait until the primary has a backup that was found equal to it after all updates so far.

        Raises:
            TimeoutError: That does not come.
        """
        self._awaited(self._awaited(0).replication.verified + 1)

    def _awaited(self, verified: int) -> Answer:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for answer in self.answers():
                told = answer.replication
                leads = told.standing == Standing.STANDING_PRIMARY
                if leads and answer.has_backup and told.verified >= verified:
                    return answer
            time.sleep(0.05)
        described = "; ".join(map(_described, self.answers())) or "none answers"
        raise TimeoutError(
            f"no primary with an equal backup in {_PATIENCE_SECONDS:g} s: {described}"
        )


def _described(answer: Answer) -> str:
    """Return what a replica says of itself, for people."""
    told = answer.replication
    number, standing = told.replica.index, Standing.Name(told.standing)
    behind = f"{told.behind} records behind, equal at {told.verified}"
    return f"replica {number} is {standing} in epoch {told.view.epoch}, {behind}; {told.trouble}"
