"""All that is wrong with a cluster, by what its servers say, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil, log1p
from statistics import median
from typing import NamedTuple

from stratagem_deploy.watching.asking import (
    ServerAnswer,
    amount,
    mean,
    of_clients,
    span,
    statuses,
    total,
)
from stratagem_deploy.watching.clients import (
    FUNCTION,
    PART,
    Finding,
    all_waits,
    cut_off,
    lost,
    session_name,
    silent,
    stalled,
    task_name,
)
from stratagem_deploy.watching.rows import replica_words, standing_word
from stratagem_proto.v1.replication_pb2 import STANDING_BACKUP
from stratagem_proto.v1.status_pb2 import (
    CheckpointStatus,
    GetStatusResponse,
    LogStatus,
    TableFilesStatus,
)
from stratagem_proto.v1.waits_pb2 import Waiter

# Of a part of a checkpoint: any disk is faster, and smaller parts say nothing.
_SLOW_BYTES_PER_SECOND, _TELLING_BYTES = 20e6, 10e6

# Of a batch of a log: disks that turn take 20 ms, and a batch has at most 64 MB.
_SLOW_BATCH_SECONDS, _ENOUGH_BATCHES = 0.5, 5

# Of what functions take on average.
_TIMES_LONGER = 10

# Of a budget in use; what comes next may be refused.
_NEARLY_FULL = 0.9

# Leases and deadlines are measured by each machine for itself: clocks matter to people who compare
# logs. A second is what NTP keeps by far.
_MOST_SKEW_SECONDS = 2.0

# A client repeats a request sooner for which there was no memory.
_REPEATED_SECONDS = 5.0

# A server is slow that takes so many times as long as the others, over so many calls.
_SLOW_SERVER, _ENOUGH_CALLS = 3.0, 20

# Of an update and its answer: any network within a rack is faster, and smaller ones say nothing.
_SLOW_LINK_BYTES_PER_SECOND, _TELLING_UPDATE_BYTES = 50e6, 1e6

# Of the time of a step, what updates may still take once workers share after more steps.
_BEARABLE_SHARE = 0.1

# A backup applies what it has as fast as the primary; more is what it does not keep up with.
_FAR_BEHIND = 1000

# Of the disk of table files: any local one gives more reads a second, and fewer reads say nothing.
_SLOW_READS_PER_SECOND, _ENOUGH_READS = 1000.0, 1000

# Of lookups of rows that are found in memory; fewer lookups say nothing.
_GOOD_HITS, _ENOUGH_LOOKUPS = 0.9, 10_000

# A straggler takes so many times as long as the others. Of steps that differ by less than some
# milliseconds, the scheduler of the system may make the difference.
_STRAGGLER, _TELLING_SECONDS = 2.0, 0.005


def findings(answers: Sequence[ServerAnswer], patience: float) -> list[Finding]:
    """Return what is wrong, those first for whom others wait.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
    """
    called = of_clients(answers)
    links = [*cut_off(called, patience)]
    excused = {culprit for link in links for culprit in link.culprits}
    found = [
        *_missed(answers),
        *_unserved(answers),
        *_stuck_logs(answers, patience),
        *_refusing(answers),
        *links,
        *stalled(called, patience, excused),
        *_unreached(called, patience),
        *_endless(called, patience),
        *_late_parts(answers, patience),
        *_unprotected(answers),
        *lost(called),
        *silent(called),
        *_full(answers),
        *_table_files(answers),
        *_slow_disks(answers),
        *_slow_servers(called),
        *_slow_network(called),
        *_stragglers(called),
        *_skewed(answers),
        *_different_versions(answers),
    ]
    return sorted(found, key=lambda finding: not finding.stalls)


def _missed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that should have answered and did not, but for replicas."""
    for answer in answers:
        if not answer.is_missed or answer.place.replica is not None:
            continue
        if answer.refused:
            # To start it again would lose what it has.
            yield Finding(
                f"{answer.label} serves, and does not take this command for one of its cluster: "
                f"{answer.problem}",
                "give this command the token or the certificates of the server's cluster",
            )
        else:
            yield Finding(
                f"{answer.label} does not answer: {answer.problem}",
                "look at its log and its machine; a process that is stopped or a network that is "
                "cut looks the same. Started again with --restore it goes on from its checkpoint",
                stalls=True,
                culprits=(answer.label,),
            )


def _replicated(answers: Sequence[ServerAnswer]) -> Mapping[str, Sequence[ServerAnswer]]:
    """Return what was said by or about each task that has replicas."""
    tasks = {
        answer.task
        for answer in answers
        if answer.place.replica is not None
        or (answer.replication is not None and not answer.replication.is_movable)
    }
    return {task: [each for each in answers if each.task == task] for task in sorted(tasks)}


def _unserved(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the tasks none of whose replicas serves."""
    for task, replicas in _replicated(answers).items():
        if not any(each.serves for each in replicas):
            said = "; ".join(
                f"{each.label} does not answer ({each.problem})"
                if each.replication is None
                else f"{each.label} is: {replica_words(each.replication)}"
                for each in replicas
            )
            yield Finding(
                f"no replica of {task} serves: {said}",
                "look at the logs of its replicas, and whether both reach each other and their "
                "--arbiter; start those again that have ended",
                stalls=True,
                culprits=(task,),
            )


def _unprotected(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the tasks that no backup could take over, and the backups that do not catch up."""
    for task, replicas in _replicated(answers).items():
        others = [each for each in replicas if not each.serves]
        for primary in replicas:
            status = primary.replication
            if primary.serves and status is not None and not status.view.HasField("backup"):
                yield _without_backup(task, status.trouble, others)
            elif primary.serves and status is not None and status.behind >= _FAR_BEHIND:
                yield _behind(task, f"its backup is {status.behind} records behind")
        for other in others:
            status = other.replication
            if status is not None and status.standing == STANDING_BACKUP and status.trouble:
                yield _behind(other.label, f"it does not follow: {status.trouble}")


def _without_backup(task: str, trouble: str, others: Sequence[ServerAnswer]) -> Finding:
    words = [trouble] if trouble else []
    words += [f"{each.label} does not answer" for each in others if each.replication is None]
    for each in others:
        if (status := each.replication) is not None:
            word = f"{each.label} {standing_word(status)}"
            if status.HasField("silent_seconds"):
                word += f" and has heard of the primary {span(status.silent_seconds)} ago"
            words.append(word + (f": {status.trouble}" if status.trouble else ""))
    return Finding(
        f"{task} has no backup: {'; '.join(words) or 'no other replica has joined it'}",
        "what it has is lost if it ends now: start its other replica, or see in its log why it "
        "does not catch up",
        culprits=tuple(each.label for each in others) or (task,),
    )


def _behind(label: str, what: str) -> Finding:
    return Finding(
        f"{label}: {what}",
        "look at its machine's processors and at the network between the replicas: the primary "
        "waits for its backup before it answers",
        culprits=(label,),
    )


def _stuck_logs(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the servers whose answers wait for the disk of their log."""
    for server, status in statuses(answers):
        log = status.parameter_server.log
        if log.HasField("writing_seconds") and log.writing_seconds >= patience:
            records = log.position - log.written
            why = f": {log.failure}" if log.failure else ""
            yield Finding(
                f"{server} waits {span(log.writing_seconds)} for the disk of its log, and so do "
                f"its clients: {records} records are not on disk{why}",
                "look whether that disk is full, broken, or busy with something else",
                stalls=True,
                culprits=(server,),
            )


def _slow_disks(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers whose disks fail, or are slow."""
    for server, status in statuses(answers):
        yield from _slow_log(server, status.parameter_server.log)
        yield from _slow_checkpoint(server, status.parameter_server.checkpoint)


def _slow_log(server: str, log: LogStatus) -> Iterator[Finding]:
    seconds = mean(log.seconds) or 0.0
    if seconds > _SLOW_BATCH_SECONDS and total(log.seconds) >= _ENOUGH_BATCHES:
        yield Finding(
            f"{server} waits {span(seconds)} on average until a part of its log is on disk",
            "the disk is slow: use another one for --durability-folder",
            culprits=(server,),
        )


def _slow_checkpoint(server: str, saved: CheckpointStatus) -> Iterator[Finding]:
    if saved.failures:
        yield Finding(
            f"{server} could not write {saved.failures} parts of checkpoints",
            "see its log for the reason, most often a full disk or a folder of another user",
            culprits=(server,),
        )
    if saved.bytes > _TELLING_BYTES and saved.bytes < _SLOW_BYTES_PER_SECOND * saved.seconds:
        yield Finding(
            f"{server} took {span(saved.seconds)} to write {amount(saved.bytes)} of a "
            f"checkpoint to {saved.folder}",
            "the disk is slow: use another folder, or save less often",
            culprits=(server,),
        )


def _late_parts(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the servers that take too long for their part of a checkpoint that is being saved."""
    sizes = {
        server: sum(one.bytes for one in status.parameter_server.totals)
        for server, status in statuses(answers)
    }
    for _, wait in all_waits(answers):
        for awaited in wait.awaited if wait.reason == PART else ():
            server = task_name(awaited.client)
            usual = patience + sizes.get(server, 0) / _SLOW_BYTES_PER_SECOND
            if server in sizes and wait.seconds > usual:
                yield Finding(
                    f"{wait.subject}: {task_name(wait.client)} waits {span(wait.seconds)} for the "
                    f"part of {server}, whose variables have {amount(sizes[server])}",
                    "look whether the disk of that folder is full, broken, or busy with something "
                    "else",
                    stalls=True,
                    culprits=(server,),
                )


def _endless(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the functions that run for much longer than others of their worker did."""
    waiting = _waits_by_worker(answers)
    for server, status in statuses(answers):
        worker, wait = status.worker_server, waiting.get(server)
        usual = mean(worker.seconds) or 0.0
        if not worker.HasField("current"):
            continue
        current = worker.current
        if current.seconds > max(patience, _TIMES_LONGER * usual):
            doing = current.doing or "a place that cannot be seen"
            yield Finding(
                f"{server} has run function {current.number} for {span(current.seconds)}, "
                f"its functions take {span(usual)} on average; it is at {doing}{_for_whom(wait)}",
                "look at that line: it may wait for data, for a lock, or never end",
                stalls=bool(worker.queued) or wait is not None,
                culprits=(server,),
            )


def _unreached(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the workers that do not answer while a coordinator waits for what they run."""
    waiting = _waits_by_worker(answers)
    for answer in answers:
        wait = waiting.get(answer.label)
        if answer.status is None and wait is not None and wait.seconds >= patience:
            yield Finding(
                f"{answer.label} does not answer{_for_whom(wait)}: {answer.problem}",
                "look whether its process is stopped, its machine overloaded or its network cut; "
                "others run its functions once the coordinator takes it for lost",
                stalls=True,
                culprits=(answer.label,),
            )


def _for_whom(wait: Waiter | None) -> str:
    if wait is None:
        return ""
    return f"; {task_name(wait.client)} waits {span(wait.seconds)} for {wait.subject}"


def _waits_by_worker(answers: Sequence[ServerAnswer]) -> Mapping[str, Waiter]:
    """Return the longest wait of a coordinator for each worker."""
    found: dict[str, Waiter] = {}
    waits = [wait for _, wait in all_waits(answers) if wait.reason == FUNCTION]
    for wait in sorted(waits, key=lambda each: each.seconds):
        found |= {task_name(awaited.client): wait for awaited in wait.awaited}
    return found


def _refusing(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that have no memory for requests, which clients repeat meanwhile."""
    for server, status in statuses(answers):
        staged = status.parameter_server.staged
        if staged.HasField("refused") and staged.refused_seconds < _REPEATED_SECONDS:
            yield Finding(
                f"{server} refuses requests: one needed {amount(staged.refused)}, but "
                f"{amount(staged.used)} of {amount(staged.limit)} are in use (--staged-bytes)",
                "raise --staged-bytes, or use more servers",
                stalls=True,
                culprits=(server,),
            )


def _full(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers whose memory is almost used up."""
    for server, status in statuses(answers):
        mine = status.parameter_server
        for budget, flag in ((mine.staged, "--staged-bytes"), (mine.room, "--variable-bytes")):
            if budget.limit and budget.used >= _NEARLY_FULL * budget.limit:
                yield Finding(
                    f"{server} uses {amount(budget.used)} of {amount(budget.limit)} ({flag})",
                    f"raise {flag}, or use more servers",
                    culprits=(server,),
                )


def _table_files(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers whose disks for tables fail, are full or slow, or are asked too often."""
    for server, status in statuses(answers):
        mine = status.parameter_server
        if not mine.HasField("table_files"):
            continue
        files = mine.table_files
        if files.failure:
            yield Finding(
                f"{server} serves no tables any more: {files.failure}",
                "start it again with --table-folder on another disk: it goes on from its log, its "
                "backup or a checkpoint",
                stalls=True,
                culprits=(server,),
            )
        elif files.rows:
            yield from _slow_table_disk(server, files)
            yield from _small_table_budget(server, files)
        elif sum(each.bytes for each in mine.totals) > files.resident.limit:
            yield Finding(
                f"{server} has --table-bytes, and more bytes of variables, none of which is a "
                "table whose rows may be in files",
                "make tables by stratagem.nn.Embedding or DynamicEmbedding in place of "
                "nn.Embedding(sparse=True), which has memory in programs and on servers",
                culprits=(server,),
            )


def _slow_table_disk(server: str, files: TableFilesStatus) -> Iterator[Finding]:
    if files.file_bytes and files.free_bytes < (1 - _NEARLY_FULL) * files.file_bytes:
        yield Finding(
            f"the disk of the tables of {server}, {files.folder}, has {amount(files.free_bytes)} "
            f"left, and its files have {amount(files.file_bytes)}",
            "make room there, use more servers, or give another --table-folder",
            culprits=(server,),
        )
    rate = files.reads / files.read_seconds if files.read_seconds else 0.0
    if files.reads >= _ENOUGH_READS and 0 < rate < _SLOW_READS_PER_SECOND:
        yield Finding(
            f"the disk of the tables of {server}, {files.folder}, gave {rate:.0f} reads a second "
            f"where {files.reads} were waited for",
            "the disk is slow: give --table-folder a folder on a local solid-state disk, or raise "
            "--table-bytes",
            culprits=(server,),
        )


def _small_table_budget(server: str, files: TableFilesStatus) -> Iterator[Finding]:
    asked = files.found_rows + files.missed_rows
    if asked < _ENOUGH_LOOKUPS or files.row_bytes <= files.resident.limit:
        return
    if (hits := files.found_rows / asked) < _GOOD_HITS:
        wanted = _budget_for(_GOOD_HITS, hits, files)
        yield Finding(
            f"{server} found {hits:.0%} of the rows of its tables in memory: it has "
            f"{amount(files.resident.limit)} for {amount(files.row_bytes)} of rows (--table-bytes)",
            f"for about {_GOOD_HITS:.0%} give --table-bytes {wanted}, or use more servers; "
            "strategy.lookahead has rows read while workers compute",
            culprits=(server,),
        )


def _budget_for(wanted: float, hits: float, files: TableFilesStatus) -> int:
    """Return the --table-bytes with which a part of the lookups is found in memory.

    The frequency of rows is taken for a power law, whose exponent is the one with which those that
    are in memory, the most frequent ones, get the part that is found now.

    Args:
        wanted: That part.
        hits: The part that is found now.
        files: What the server says.
    """
    rows, row_bytes = files.rows, files.row_bytes / files.rows
    kept = min(max(1.0, files.resident.used / row_bytes), rows)

    def share(count: float, exponent: float) -> float:
        """Return the part of all lookups that is for the most frequent rows."""
        power = 1 - exponent
        if abs(power) < 1e-6:
            return log1p(count) / log1p(rows)
        return float(((count + 1) ** power - 1) / ((rows + 1) ** power - 1))

    exponent = _where(lambda each: share(kept, each) >= hits, 0.0, 3.0)
    needed = _where(lambda count: share(count, exponent) >= wanted, kept, float(rows))
    return ceil(needed * row_bytes)


def _where(is_so: Callable[[float], bool], low: float, high: float) -> float:
    """Return where something becomes so between two numbers; `high` if nowhere."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_so(middle) else (middle, high)
    return high


def _slow_servers(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that take much longer than all others for the same requests."""
    for method in ("Update", "Read"):
        times = {
            server: mean(one.seconds) or 0.0
            for server, status in statuses(answers)
            for one in status.methods
            if one.method == method and total(one.seconds) >= _ENOUGH_CALLS
        }
        for server, seconds in times.items():
            others = [other for name, other in times.items() if name != server]
            if others and seconds > _SLOW_SERVER * max(others):
                yield Finding(
                    f"{server} takes {span(seconds)} for each {method}, the other servers at most "
                    f"{span(max(others))}",
                    "look at its machine's processors and network, and whether the largest "
                    "variables are all there (`stratagem variables`)",
                    culprits=(server,),
                )


class _Update(NamedTuple):
    """What an update of a worker takes on one server, on average.

    Attributes:
        seconds: From its first byte to the last one of the answer, without waits for others.
        sent: Bytes of gradients.
        answered: Bytes of values.
    """

    seconds: float
    sent: float
    answered: float

    @property
    def rate(self) -> float:
        """Bytes a second, both ways together."""
        return (self.sent + self.answered) / self.seconds


def _update_of(status: GetStatusResponse) -> _Update | None:
    """Return what updates take; None if there were too few, or they are small."""
    methods = {each.method: each for each in status.methods}
    number = total(methods["Update"].seconds) if "Update" in methods else 0
    if number < _ENOUGH_CALLS:
        return None
    moving = [methods[name] for name in ("Update", "Read") if name in methods]
    waited = sum(each.seconds.sum for each in status.parameter_server.waits)
    found = _Update(
        (sum(each.seconds.sum for each in moving) - waited) / number,
        sum(each.received_bytes.sum for each in moving) / number,
        sum(each.sent_bytes.sum for each in moving) / number,
    )
    is_telling = found.sent + found.answered >= _TELLING_UPDATE_BYTES and found.seconds > 0
    return found if is_telling else None


def _slow_network(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield that workers wait for bytes for longer than they compute, by the slowest server."""
    told = {server: _update_of(status) for server, status in statuses(answers)}
    updates = {server: each for server, each in told.items() if each is not None}
    own = [
        session.pace.own_seconds
        for _, status in statuses(answers)
        for session in status.sessions
        if session.HasField("pace")
    ]
    if not updates or not own:
        return
    server, slowest = max(updates.items(), key=lambda each: each[1].seconds)
    usual = median(own)
    if slowest.rate < _SLOW_LINK_BYTES_PER_SECOND and slowest.seconds > usual:
        often = slowest.seconds / max(usual, _TELLING_SECONDS) / _BEARABLE_SHARE
        left = (slowest.sent / 4 + slowest.answered) / (slowest.sent + slowest.answered)
        yield Finding(
            f"the network holds training up: {server} takes {span(slowest.seconds)} for an update "
            f"of {amount(slowest.sent)} and values of {amount(slowest.answered)}, "
            f"{amount(slowest.rate)} a second; workers compute {span(usual)} for a step",
            f"share after many steps by stratagem.LocalSteps(every={ceil(often)}); "
            f'compression="int8" leaves {left:.0%} of the bytes. See that no server has more bytes '
            "than others (`stratagem variables`); docs/how-to/networks.md compares",
            culprits=(server,),
        )


def _stragglers(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the workers that take much longer for their steps, not counting what they wait for."""
    paces = {
        session_name(session): session.pace.own_seconds
        for _, status in statuses(answers)
        for session in status.sessions
        if session.HasField("pace")
    }
    for name, seconds in paces.items():
        others = [each for other, each in paces.items() if other != name]
        usual = median(others) if others else seconds
        if seconds > _STRAGGLER * usual and seconds - usual > _TELLING_SECONDS:
            yield Finding(
                f"{name} takes {span(seconds)} for a step by itself, the others "
                f"{span(usual)} (medians, without their waits)",
                "look at its machine's processors, at what else runs there, and how it reads its "
                "data; with synchronous steps the others wait for it",
                culprits=(name,),
            )


def _skewed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the pairs of servers whose clocks disagree."""
    clocks = [
        (answer.label, answer.status.unix_seconds - answer.time)
        for answer in answers
        if answer.status and answer.status.unix_seconds
    ]
    # An answer may have come that much earlier than it was looked at.
    times = [answer.time for answer in answers]
    least = _MOST_SKEW_SECONDS + max(times, default=0.0) - min(times, default=0.0)
    for (one, here), (other, there) in combinations(clocks, 2):
        if abs(here - there) > least:
            yield Finding(
                f"the clocks of {one} and {other} differ by {span(abs(here - there))}",
                "let NTP set them; training is not affected, but times in logs do not compare",
                culprits=(one, other),
            )


def _different_versions(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the packages of which servers have different versions."""
    known: dict[str, dict[str, list[str]]] = {}
    for server, status in statuses(answers):
        for package, version in status.versions.items():
            known.setdefault(package, {}).setdefault(version, []).append(server)
    for package, versions in sorted(known.items()):
        if len(versions) > 1:
            which = (f"{', '.join(who)} {version}" for version, who in sorted(versions.items()))
            yield Finding(
                f"versions of {package} differ: {'; '.join(which)}",
                f"install one version of {package} on all",
                culprits=tuple(server for who in versions.values() for server in who),
            )
