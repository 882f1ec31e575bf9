"""The two replicas of a server, as they describe themselves."""

from __future__ import annotations

import time
from typing import NamedTuple

from stratagem_deploy import LocalCluster
from stratagem_deploy.watching.asking import ask
from stratagem_deploy.watching.places import ServerPlace
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.replication_pb2 import ReplicationStatus, Standing
from stratagem_proto.v1.status_pb2 import GetStatusResponse

_PATIENCE_SECONDS = 120.0


class Answer(NamedTuple):
    """What a replica says of itself."""

    status: GetStatusResponse
    replication: ReplicationStatus


class Replicas:
    """The replicas of the first server of a cluster.

    Args:
        cluster: The cluster, of processes.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        resolver = cluster.cluster_resolver
        address = resolver.cluster_spec().task_address("ps", 0)
        self._token = resolver.cluster_token or ""
        self._places = [
            ServerPlace(each, "ps:0", replica=number)
            for number, each in enumerate(replica_addresses("/job:ps/task:0", address))
        ]

    def _answers(self) -> list[Answer]:
        answers = ask(self._places, self._token, 5.0)
        return [
            Answer(each.status, each.replication)
            for each in answers
            if each.status and each.replication
        ]

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
            for answer in self._answers():
                told = answer.replication
                leads = told.standing == Standing.STANDING_PRIMARY
                if leads and told.view.HasField("backup") and told.verified >= verified:
                    return answer
            time.sleep(0.05)
        raise TimeoutError(f"no primary with an equal backup in {_PATIENCE_SECONDS:g} s")
