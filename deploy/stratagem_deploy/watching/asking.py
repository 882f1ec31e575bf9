"""Where the servers of a cluster are, what they answer, and what that adds up to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import grpc

from stratagem_deploy.processes.resources import RunRecord, records
from stratagem_proto.configuration.tf_config import TFConfig, parse_tf_config, read_tf_config
from stratagem_proto.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnimplementedError,
)
from stratagem_proto.replica_addresses import replica_addresses, require_one_address
from stratagem_proto.v1 import servers_pb2
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY, Replica, ReplicationStatus
from stratagem_proto.v1.status_pb2 import (
    GetStatusResponse,
    Histogram,
    MethodStatus,
    TableFilesStatus,
)
from stratagem_proto.wire.status import from_rpc_error
from stratagem_rpc.asking import Answer, Question, begin_status, observer_handshake
from stratagem_rpc.channel import ANY_PARAMETER_SERVER, open_channel
from stratagem_rpc.serving.settings import check_server_address

_OTHER_PORT = " This is probably its port for health checks; give the main one, that of --bind"

_LOCATE = f"/{servers_pb2.DESCRIPTOR.services_by_name['ServersService'].full_name}/LocateTasks"

_REFUSALS = (PermissionDeniedError, UnauthenticatedError)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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
    """Servers that a command is about, and the run on this machine that has them, if one has."""

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
    places: Sequence[ServerPlace] = ()
    if run is None:
        places = [ServerPlace(address) for address in addresses] or places_of(_config(cluster))
    return WatchedCluster(places) if places or cluster else _of_run(run, given)


def _of_run(run: int | None, given: str) -> WatchedCluster:
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
    places = []
    for job in ("ps", "worker"):
        for index, address in sorted(config.cluster.get(job, {}).items()):
            label, name = f"{job}:{index}", f"/job:{job}/task:{index}"
            if job != "ps":
                require_one_address(name, address)
            addresses = replica_addresses(name, address)
            places += [
                ServerPlace(each, label, job != "ps", number if len(addresses) > 1 else None)
                for number, each in enumerate(addresses)
                if not each.endswith(":0")
            ]
    return places


@dataclass(frozen=True)
class ServerAnswer:
    """What came of asking one server.

    Attributes:
        place: Where it was looked for.
        status: What it said; None if it did not answer.
        problem: Why it did not, or "".
        time: When, in seconds of a monotonic clock.
        refused: Whether it does not take this program for one of its cluster.
    """

    place: ServerPlace
    status: GetStatusResponse | None
    problem: str = ""
    time: float = field(default_factory=time.monotonic, compare=False)
    refused: bool = False

    @property
    def label(self) -> str:
        """What answered, for instance "ps:0"; where nobody did, what is meant to be there.

        Of a task with replicas the primary has the name of the task.
        """
        if self.status is None:
            return self.place.name
        if self.replication is None or self.serves:
            return self.task
        if self.replication.is_movable:
            return f"{self.task}, moved away"
        return replica_name(self.task, self.replication.replica.index)

    @property
    def task(self) -> str:
        """The task, whichever of its replicas it is; "" if that is not known."""
        if self.status is None:
            return self.place.label
        return f"{self.status.task.job}:{self.status.task.index}"

    @property
    def replication(self) -> ReplicationStatus | None:
        """What the replica of a task said of itself; None if it is none, or did not answer."""
        if self.status is None or not self.status.parameter_server.HasField("replication"):
            return None
        return self.status.parameter_server.replication

    @property
    def table_files(self) -> TableFilesStatus | None:
        """What it said of its tables in files; None if it has none, or did not answer."""
        if self.status is None or not self.status.parameter_server.HasField("table_files"):
            return None
        return self.status.parameter_server.table_files

    @property
    def serves(self) -> bool:
        """Whether it is the primary of its task."""
        return self.replication is not None and self.replication.standing == STANDING_PRIMARY

    @property
    def moved_to(self) -> str:
        """Where the task is that has moved away from there; "" if it has not."""
        if self.replication is None or self.serves or not self.replication.is_movable:
            return ""
        return self.replication.view.primary.address

    @property
    def is_missed(self) -> bool:
        """Whether somebody should have answered and did not."""
        return self.status is None and not self.place.optional


def ask(
    places: Sequence[ServerPlace], token: str, timeout: float, with_variables: bool = False
) -> list[ServerAnswer]:
    """Ask all servers at once, and those at once to which tasks have moved from them.

    Args:
        places: Where they are.
        token: The cluster's secret, or "".
        timeout: Longest wait for the slowest, in seconds.
        with_variables: Whether they are to list their variables.
    """
    answers = _ask_once(places, token, timeout, with_variables)
    moved = {answer.task: answer.moved_to for answer in answers if answer.moved_to}
    lost = [answer for answer in answers if answer.is_missed and not answer.refused]
    known = _located(answers, token, timeout) if lost else {}
    for answer in lost:
        server = known.get(answer.task)
        if server is not None and server.address != answer.place.address:
            moved[answer.task] = server.address
    if not moved:
        return [_explained(answer, known) for answer in answers]
    there = [ServerPlace(address, task) for task, address in moved.items()]
    found = dict(zip(moved, _ask_once(there, token, timeout, with_variables), strict=True))
    return [_explained(found.get(answer.task, answer), known) for answer in answers]


def _located(answers: Sequence[ServerAnswer], token: str, timeout: float) -> dict[str, Replica]:
    """Return which server has which task, by the word of those whose tasks move."""
    found: dict[str, tuple[int, Replica]] = {}
    request = servers_pb2.LocateTasksRequest(asking=observer_handshake())
    question = Question(_LOCATE, request, servers_pb2.LocateTasksResponse)
    with ExitStack() as channels:
        calls = []
        for answer in answers:
            if answer.replication is not None and answer.replication.is_movable:
                opened = open_channel(answer.place.address, expected=ANY_PARAMETER_SERVER)
                calls.append(Answer(channels.enter_context(opened), question, token, timeout))
        for call in calls:
            with suppress(grpc.RpcError):
                for each in call.result().tasks:
                    known = each.view.epoch, each.view.primary
                    task = f"ps:{each.task}"
                    if each.view.HasField("primary"):
                        found[task] = max(found.get(task, known), known, key=itemgetter(0))
    return {task: server for task, (_, server) in found.items()}


def _explained(answer: ServerAnswer, known: Mapping[str, Replica]) -> ServerAnswer:
    """Return an answer which says of a task that was not found who is to have it."""
    server = known.get(answer.task)
    if server is None or not answer.is_missed or answer.refused:
        return answer
    said = f"; by the word of other servers, server {server.index} at {server.address} has the task"
    return replace(answer, problem=answer.problem + said)


def _ask_once(
    places: Sequence[ServerPlace], token: str, timeout: float, with_variables: bool
) -> list[ServerAnswer]:
    answers = []
    with ExitStack() as channels:
        calls = []
        for place in places:
            channel = channels.enter_context(open_channel(place.address))
            calls.append((place, begin_status(channel, token, timeout, with_variables)))
        for place, call in calls:
            try:
                answers.append(ServerAnswer(place, call.result()))
            except grpc.RpcError as error:
                problem = from_rpc_error(error, place.name, "GetStatus")
                where = _OTHER_PORT if isinstance(problem, UnimplementedError) else ""
                refused = isinstance(problem, _REFUSALS)
                answer = ServerAnswer(place, None, problem.message + where, refused=refused)
                answers.append(answer)
    return answers


def of_clients(answers: Iterable[ServerAnswer]) -> list[ServerAnswer]:
    """Return the answers of servers that clients talk to: all but backups, which know the same."""
    return [answer for answer in answers if answer.replication is None or answer.serves]


def statuses(answers: Iterable[ServerAnswer]) -> Iterator[tuple[str, GetStatusResponse]]:
    """Yield the label of each server that answered, and what it said."""
    return ((answer.label, answer.status) for answer in answers if answer.status)


def calls_of(
    answers: Iterable[ServerAnswer], earlier: Iterable[ServerAnswer] = ()
) -> dict[str, MethodStatus]:
    """Return the calls of all servers by method.

    Args:
        answers: What they say now.
        earlier: What they said before; calls that had ended by then do not count.
    """
    before = {
        (answer.status.incarnation, method.method): method
        for answer in earlier
        if answer.status
        for method in answer.status.methods
    }
    summed: dict[str, MethodStatus] = {}
    for answer in answers:
        for method in answer.status.methods if answer.status else ():
            total = summed.setdefault(method.method, MethodStatus())
            _add(total, method, 1)
            if answer.status and (known := before.get((answer.status.incarnation, method.method))):
                _add(total, known, -1)
    return summed


def _add(summed: MethodStatus, method: MethodStatus, sign: int) -> None:
    for code, count in method.ended.items():
        summed.ended[code] += sign * count
    for mine, other in (
        (summed.seconds, method.seconds),
        (summed.received_bytes, method.received_bytes),
        (summed.sent_bytes, method.sent_bytes),
    ):
        if not other.counts:
            continue
        if not mine.counts:
            mine.bounds[:], mine.counts[:] = other.bounds, [0] * len(other.counts)
        pairs = zip(mine.counts, other.counts, strict=True)
        mine.counts[:] = [a + sign * b for a, b in pairs]
        mine.sum += sign * other.sum


def seconds_between(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> float:
    """Return the seconds between two looks.

    They are those of the clock of a server that answered both, since a look may have waited for
    servers that do not answer. Without one, they are those of this process.
    """
    before = {each.status.incarnation: each.status for each in earlier if each.status}
    for answer in answers:
        if answer.status and (known := before.get(answer.status.incarnation)):
            return answer.status.uptime_seconds - known.uptime_seconds or 1.0
    return (answers[0].time - earlier[0].time if answers and earlier else 0.0) or 1.0


def amount(nbytes: float) -> str:
    """Return bytes with about three digits, for instance "1.5 MiB"."""
    power = 0
    while nbytes >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    digits = 1 if power and nbytes < 100 else 0
    return f"{nbytes:.{digits}f} {_UNITS[power]}"


def span(seconds: float) -> str:
    """Return a time in the largest unit that leaves a number above one."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def total(histogram: Histogram) -> int:
    return sum(histogram.counts)


def mean(histogram: Histogram) -> float | None:
    """Return their mean; None if there were none."""
    number = total(histogram)
    return histogram.sum / number if number else None


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the upper bound of a quantile's bucket; None if there were none.

    What is above all bounds counts as the last one.
    """
    wanted, number = share * total(histogram), 0
    bounds = [*histogram.bounds, *histogram.bounds[-1:]]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        number += count
        if number >= wanted > 0:
            return bound
    return None
