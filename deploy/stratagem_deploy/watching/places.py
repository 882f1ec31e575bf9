"""Where the servers of a cluster are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem_deploy.processes.run_records import RunRecord, records
from stratagem_proto.configuration.tf_config import TFConfig, parse_tf_config, read_tf_config
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.replica_addresses import replica_addresses, require_one_address
from stratagem_proto.serving.settings import check_server_address

_SERVED = ("ps", "worker")


@dataclass(frozen=True)
class ServerPlace:
    """Where a server may be.

    Attributes:
        address: Of its data plane, "host:port".
        label: The task that is meant to be there, for instance "ps:0", or "".
        optional: Whether nobody need be there: a task of the job "worker" may as well be a program
            that serves nobody.
        replica: Number of the address among those of the task's replicas; None if it has none.
    """

    address: str
    label: str = ""
    optional: bool = False
    replica: int | None = None

    @property
    def name(self) -> str:
        """What is meant to be there, or where that is."""
        if self.replica is None:
            return self.label or self.address
        return replica_name(self.label, self.replica)


def replica_name(task: str, replica: int) -> str:
    """Return how commands call a replica that is not the primary of its task."""
    return f"{task} replica {replica}"


@dataclass(frozen=True)
class WatchedCluster:
    """Servers that a command is about.

    Attributes:
        places: Where they are.
        run: The run of a script on this machine that has them; None if they were told.
    """

    places: Sequence[ServerPlace]
    run: RunRecord | None = None

    @property
    def heading(self) -> str:
        """Which cluster was found; "" where it was told."""
        return f"the cluster of {_words(self.run)}" if self.run else ""


def find(
    addresses: Sequence[str], cluster: str, run: int | None = None, given: str = "HOST:PORT of each"
) -> WatchedCluster:
    """Return the servers that are told, else those of a run on this machine.

    Args:
        addresses: Given one by one; if there are any, the cluster does not count.
        cluster: A file in the form of `TF_CONFIG`; "" for the environment's.
        run: Process of the `stratagem run` whose servers are meant, whatever the environment says;
            None for that of the only one, if nothing is told.
        given: How the command takes addresses, in the words of its error.

    Raises:
        InvalidArgumentError: There is nobody to ask, or what is given is no cluster.
        PermissionDeniedError: What runs on this machine cannot be known for sure.
    """
    if run is not None and (addresses or cluster):
        raise InvalidArgumentError("--run says which servers; give no others besides")
    for address in addresses:
        check_server_address(address)
    told: Sequence[ServerPlace] = ()
    if run is None:
        told = [ServerPlace(address) for address in addresses] or places_of(_config(cluster))
    return WatchedCluster(told) if told or cluster else _running(run, given)


def _running(run: int | None, given: str) -> WatchedCluster:
    found = records()
    meant = [record for record in found if run in (None, record.pid)]
    if len(meant) == 1:
        config = TFConfig.model_validate({"cluster": meant[0].cluster})
        return WatchedCluster(places_of(config), meant[0])
    if found:
        raise InvalidArgumentError(
            "say which cluster of this machine is meant, by --run PID: "
            + ", ".join(map(_words, found))
        )
    raise InvalidArgumentError(
        f"there is no server to ask: give {given}, --cluster with a file, or set TF_CONFIG. "
        "No `stratagem run` of this user has servers on this machine"
    )


def _words(record: RunRecord) -> str:
    return f"`stratagem run {record.script}` (process {record.pid})"


def _config(cluster: str) -> TFConfig:
    if not cluster:
        return read_tf_config()
    try:
        text = Path(cluster).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"the file {cluster!r} cannot be read: {error.strerror}; give --cluster a file in the "
            "form of TF_CONFIG"
        ) from error
    return parse_tf_config(text, cluster)


def places_of(config: TFConfig) -> list[ServerPlace]:
    """Return where the servers of a cluster are.

    Raises:
        InvalidArgumentError: What is given for a task is no address, or is more than it may have.
    """
    return [
        place
        for job in _SERVED
        for index, address in sorted(config.cluster.get(job, {}).items())
        for place in _places(job, index, address)
        if not place.address.endswith(":0")
    ]


def _places(job: str, index: int, address: str) -> list[ServerPlace]:
    label, name = f"{job}:{index}", f"/job:{job}/task:{index}"
    if job != "ps":
        require_one_address(name, address)
    addresses = replica_addresses(name, address)
    return [
        ServerPlace(each, label, job != "ps", number if len(addresses) > 1 else None)
        for number, each in enumerate(addresses)
    ]
