"""Whether `stratagem doctor` names who is to blame, by what servers say."""

from __future__ import annotations

import pytest
import torch

from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace
from stratagem_deploy.watching.doctor import findings
from stratagem_proto.v1.session_pb2 import AwaitedAnswer, StepPace, Task
from stratagem_proto.v1.status_pb2 import (
    Budget,
    GetStatusResponse,
    Histogram,
    LostClient,
    MethodStatus,
    RunningFunction,
    SessionStatus,
    TableFilesStatus,
)
from stratagem_proto.v1.waits_pb2 import Awaited, Waiter

PATIENCE = 2.0


def said(index: int, **status: object) -> ServerAnswer:
    """What parameter server `index` says."""
    answer = GetStatusResponse(task=Task(job="ps", index=index), **status)  # type: ignore[arg-type]
    return ServerAnswer(ServerPlace("127.0.0.1:1", f"ps:{index}"), answer, time=100.0)


def client(index: int, silent: float = 0.1, idle: float = 0.1, doing: str = "") -> SessionStatus:
    return SessionStatus(
        task=Task(job="worker", index=index),
        silent_seconds=silent,
        idle_seconds=idle,
        doing=doing,
    )


def wait(who: int, whom: int, seconds: float = 6.1) -> Waiter:
    return Waiter(
        client=f"/job:worker/task:{who}",
        reason="step",
        subject="step 812 of 'Adam'",
        seconds=seconds,
        awaited=[Awaited(client=f"/job:worker/task:{whom}", missing="contribution")],
    )


def waiting(index: int, *waiters: Waiter, clients: tuple[SessionStatus, ...] = ()) -> ServerAnswer:
    answer = said(index, sessions=clients)
    assert answer.status is not None
    answer.status.parameter_server.waiters.extend(waiters)
    return answer


def test_the_silent_worker_that_others_wait_for_is_named() -> None:
    clients = client(0), client(1), client(3, 6.0, 6.0, "train.py:83 in step")
    answer = waiting(1, wait(0, 3), wait(1, 3), clients=clients)
    first, *_ = findings([answer], PATIENCE)
    assert first.culprits == ("worker:3",)
    assert first.stalls
    assert "step 812 of 'Adam': worker:0, worker:1 wait 6.1 s for the contribution" in first.what
    assert "on ps:1; it is silent for 6 s, last seen at train.py:83 in step" in first.what


def test_who_only_waits_for_another_one_is_not_blamed() -> None:
    answer = waiting(0, wait(0, 1), wait(1, 2), clients=(client(0), client(1), client(2)))
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:2",)


def test_those_who_wait_for_each_other_are_all_named_by_one_finding() -> None:
    answer = waiting(0, wait(0, 1), wait(1, 0), clients=(client(0), client(1)))
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:0", "worker:1")


def test_short_waits_are_usual() -> None:
    answer = waiting(0, wait(0, 1, seconds=0.5), clients=(client(0), client(1)))
    assert not findings([answer], PATIENCE)


def test_a_worker_that_never_came_is_named_by_its_number() -> None:
    never = Waiter(client="/job:worker/task:0", seconds=9, awaited=[Awaited(client="worker 2")])
    (only,) = findings([waiting(0, never, clients=(client(0),))], PATIENCE)
    assert only.culprits == ("worker 2",)
    assert "no server has a session of it" in only.what


def test_a_server_that_does_not_answer_is_named() -> None:
    missed = ServerAnswer(ServerPlace("10.0.0.1:2222", "ps:1"), None, "no answer in 5 s", 100.0)
    (only,) = findings([missed], PATIENCE)
    assert (only.culprits, only.stalls) == (("ps:1",), True)


def test_budgets_disks_clocks_and_versions_are_looked_at() -> None:
    first = said(0, unix_seconds=1_000.0, versions={"torch": "2.13.0"})
    second = said(1, unix_seconds=1_060.0, versions={"torch": "2.6.0"})
    assert first.status is not None
    mine = first.status.parameter_server
    mine.staged.CopyFrom(Budget(used=95, limit=100))
    mine.checkpoint.failures, mine.checkpoint.folder = 1, "checkpoints"
    mine.checkpoint.bytes, mine.checkpoint.seconds = 100_000_000, 60.0
    told = [one.what for one in findings([first, second], PATIENCE)]
    assert len(told) == 5
    assert any("--staged-bytes" in one for one in told)
    assert any("could not write 1 parts" in one for one in told)
    assert any("took 60 s to write" in one for one in told)
    assert any("clocks of ps:0 and ps:1 differ by 60 s" in one for one in told)
    assert any("versions of torch differ: ps:0 2.13.0; ps:1 2.6.0" in one for one in told)


def test_a_function_that_does_not_end_is_named_with_its_line() -> None:
    status = GetStatusResponse(task=Task(job="worker", index=2))
    status.worker_server.queued = 3
    current = RunningFunction(number=7, seconds=61, doing="train.py:20 in step")
    status.worker_server.current.CopyFrom(current)
    (only,) = findings([ServerAnswer(ServerPlace("127.0.0.1:1"), status)], PATIENCE)
    assert (only.culprits, only.stalls) == (("worker:2",), True)
    assert "function 7 for 61 s" in only.what
    assert "train.py:20 in step" in only.what


def test_a_disk_that_takes_no_more_of_a_log_holds_others_up() -> None:
    answer = said(0)
    assert answer.status is not None
    log = answer.status.parameter_server.log
    log.position, log.written, log.writing_seconds = 90, 80, 6.1
    log.failure = "No space left on device"
    (only,) = findings([answer], PATIENCE)
    assert (only.culprits, only.stalls) == (("ps:0",), True)
    assert "waits 6.1 s for the disk of its log" in only.what
    assert "10 records are not on disk: No space left" in only.what
    log.writing_seconds = 0.5
    assert not findings([answer], PATIENCE)


def test_a_slow_disk_of_a_log_is_named() -> None:
    answer = said(0)
    assert answer.status is not None
    seconds = answer.status.parameter_server.log.seconds
    seconds.CopyFrom(Histogram(bounds=[0.1, 1.0], counts=[0, 20, 0], sum=16.0))
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("ps:0",)
    assert "waits 800 ms on average" in only.what


def test_a_link_that_is_cut_is_told_from_a_client_that_is_silent() -> None:
    hears, hears_not = said(0, sessions=[client(1)]), said(1, sessions=[client(1, 7.0, 7.0)])
    (only,) = findings([hears, hears_not], PATIENCE)
    assert only.culprits == ("worker:1", "ps:1")
    assert "ps:1 has heard nothing of worker:1 for 7 s, but others have" in only.what
    assert only.stalls
    (only,) = findings([hears_not], PATIENCE)
    assert only.culprits == ("worker:1",)


def test_an_answer_that_does_not_arrive_is_told_from_one_that_takes_long() -> None:
    awaited = AwaitedAnswer(server=Task(job="ps"), method="UpdateNonSlot", seconds=4.0)
    waits = client(1, 0.1, 4.0)
    waits.awaited.append(awaited)
    answer = said(0, sessions=[waits])
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:1", "ps:0")
    assert "worker:1 waits 4 s for ps:0 to answer UpdateNonSlot" in only.what
    assert answer.status is not None
    (session,) = answer.status.sessions
    # What its last heartbeat said is over.
    session.released_seconds = 1.0
    assert not findings([answer], PATIENCE)
    session.ClearField("released_seconds")
    answer.status.methods.add(method="Update", in_progress=1)
    assert not findings([answer], PATIENCE)


def test_a_read_that_is_held_for_another_client_is_not_that_of_the_one_that_is_cut_off() -> None:
    cut_off = client(1, 0.1, 4.0)
    cut_off.awaited.add(server=Task(job="ps"), method="Read", seconds=4.0)
    answer = waiting(0, wait(0, 1), clients=(client(0), cut_off))
    assert answer.status is not None
    answer.status.methods.add(method="Read", in_progress=1)
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:1", "ps:0")
    answer.status.methods[0].in_progress = 2
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:1",)


def test_what_a_client_waits_for_by_itself_is_told_once() -> None:
    waits = client(1)
    waits.waits.append(
        Waiter(
            client="/job:worker/task:1",
            subject="variable 'w'",
            seconds=6.1,
            awaited=[Awaited(client="/job:worker/task:0", missing="program")],
        )
    )
    (only,) = findings([said(0, sessions=[waits]), said(1, sessions=[waits])], PATIENCE)
    assert only.culprits == ("worker:0",)
    assert only.what == (
        "variable 'w': worker:1 waits 6.1 s for the program of worker:0; no server has a session "
        "of it"
    )


def scheduled(missing: str, seconds: float) -> ServerAnswer:
    """What a server says while a coordinator waits for a function of worker 1."""
    session = SessionStatus(task=Task(job="chief"), silent_seconds=0.1)
    session.waits.append(
        Waiter(
            client="/job:chief/task:0",
            reason="function",
            subject="the end of all functions",
            seconds=seconds,
            awaited=[Awaited(client="/job:worker/task:1", missing=missing, seconds=seconds)],
        )
    )
    return said(0, sessions=[session])


def test_a_worker_that_does_not_answer_while_a_coordinator_waits_is_named() -> None:
    place = ServerPlace("10.0.0.1:2222", "worker:1", optional=True)
    silent = ServerAnswer(place, None, "no answer in 5 s", 100.0)
    (only,) = findings([scheduled("end of 'work'", 6.1), silent], PATIENCE)
    assert (only.culprits, only.stalls) == (("worker:1",), True)
    assert "chief:0 waits 6.1 s for the end of all functions" in only.what
    assert not findings([scheduled("end of 'work'", 1.0), silent], PATIENCE)


def test_functions_that_take_long_are_usual() -> None:
    working = GetStatusResponse(task=Task(job="worker", index=1))
    seconds = Histogram(bounds=[10.0, 100.0], counts=[0, 3, 0], sum=60.0)
    working.worker_server.seconds.CopyFrom(seconds)
    working.worker_server.current.CopyFrom(RunningFunction(number=7, seconds=61))
    answers = [
        scheduled("end of 'work'", 61.0),
        ServerAnswer(ServerPlace("127.0.0.1:1"), working, time=100.0),
    ]
    assert not findings(answers, PATIENCE)
    working.worker_server.current.seconds = 400.0
    (only,) = findings(answers, PATIENCE)
    assert only.culprits == ("worker:1",)


def lock_wait(who: int, seconds: float) -> Waiter:
    missing = "end of the update of /job:worker/task:2"
    return Waiter(
        client=f"/job:worker/task:{who}",
        reason="lock",
        subject="variable 'w'",
        seconds=seconds,
        awaited=[Awaited(client="/job:ps/task:0", missing=missing)],
    )


def test_who_waits_for_a_variable_for_a_moment_is_not_excused() -> None:
    clients = client(0), client(1)
    answer = waiting(0, wait(0, 1), lock_wait(1, 0.1), clients=clients)
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:1",)
    answer = waiting(0, wait(0, 1), lock_wait(1, 6.0), clients=clients)
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("ps:0",)


def pacing(*seconds: float) -> ServerAnswer:
    sessions = [client(index) for index in range(len(seconds))]
    for session, each in zip(sessions, seconds, strict=True):
        session.pace.CopyFrom(StepPace(steps=16, own_seconds=each))
    return said(0, sessions=sessions)


def test_a_worker_that_is_slow_by_itself_is_named_with_the_figures() -> None:
    (only,) = findings([pacing(0.1, 0.25, 0.12)], PATIENCE)
    assert (only.culprits, only.stalls) == (("worker:1",), False)
    assert "worker:1 takes 250 ms for a step by itself, the others 110 ms" in only.what


@pytest.mark.parametrize("seconds", [(0.1, 0.19), (0.1,), (0.001, 0.004), (0.1, 0.1, 0.1)])
def test_workers_of_about_the_same_speed_are_not_named(seconds: tuple[float, ...]) -> None:
    assert not findings([pacing(*seconds)], PATIENCE)


def saving(nbytes: int, seconds: float) -> ServerAnswer:
    answer = said(0, sessions=[client(0)])
    assert answer.status is not None
    answer.status.parameter_server.totals.add(bytes=nbytes)
    answer.status.sessions[0].waits.append(
        Waiter(
            client="/job:worker/task:0",
            reason="part",
            subject="checkpoint '/c/.checkpoint-1.partial'",
            seconds=seconds,
            awaited=[Awaited(client="/job:ps/task:0", missing="part")],
        )
    )
    return answer


def test_a_part_of_a_checkpoint_has_the_time_that_its_size_needs() -> None:
    (only,) = findings([saving(1000, 4.0)], PATIENCE)
    assert only.culprits == ("ps:0",)
    assert "worker:0 waits 4 s for the part of ps:0" in only.what
    assert not findings([saving(200_000_000, 4.0)], PATIENCE)


def test_a_server_that_refuses_requests_for_lack_of_memory_is_named() -> None:
    answer = waiting(0, wait(0, 1), clients=(client(0), client(1)))
    assert answer.status is not None
    staged = answer.status.parameter_server.staged
    staged.used, staged.limit = 60, 100
    staged.refused, staged.refused_seconds = 60, 0.2
    first, _ = findings([answer], PATIENCE)
    assert (first.culprits, first.stalls) == (("ps:0",), True)
    assert "one needed 60 B, but 60 B of 100 B are in use" in first.what
    staged.refused_seconds = 60.0
    (only,) = findings([answer], PATIENCE)
    assert only.culprits == ("worker:1",)


def test_a_client_that_did_not_come_back_is_named() -> None:
    loss = LostClient(
        task=Task(job="chief"), seconds=8.0, why="the lease of /job:chief/task:0 ran out"
    )
    (only,) = findings([said(0, lost=[loss]), said(1, lost=[loss])], PATIENCE)
    assert only.culprits == ("chief:0",)
    assert "chief:0 is gone for 8 s: the lease of" in only.what
    came_back = said(1, sessions=[SessionStatus(task=Task(job="chief"), silent_seconds=0.1)])
    assert not findings([said(0, lost=[loss]), came_back], PATIENCE)


def updating(seconds: float, waited: float = 0.0, own: float = 0.4) -> ServerAnswer:
    """A server that takes so long for an update of 10 MiB, and as much in answer."""

    def times(each: float) -> Histogram:
        return Histogram(bounds=[1.0], counts=[0, 20], sum=20 * each)

    worker = client(0)
    worker.pace.CopyFrom(StepPace(steps=16, own_seconds=own))
    calls = MethodStatus(method="Update", seconds=times(seconds))
    calls.received_bytes.CopyFrom(times(10 << 20))
    calls.sent_bytes.CopyFrom(times(10 << 20))
    answer = said(0, sessions=[worker], methods=[calls])
    assert answer.status is not None
    answer.status.parameter_server.waits.add(reason="step", seconds=times(waited))
    return answer


def test_a_network_that_takes_longer_than_steps_is_told_with_what_helps() -> None:
    (only,) = findings([updating(seconds=20.0)], PATIENCE)
    assert (only.culprits, only.stalls) == (("ps:0",), False)
    assert "20 s for an update of 10.0 MiB and values of 10.0 MiB, 1.0 MiB a second" in only.what
    assert "workers compute 400 ms for a step" in only.what
    assert "LocalSteps(every=500)" in only.remedy
    assert '"int8" leaves 62% of the bytes' in only.remedy


@pytest.mark.parametrize(
    "answer",
    [
        updating(seconds=20.0, own=30.0),
        updating(seconds=20.0, waited=19.9),
        updating(seconds=0.1, own=0.05),
    ],
    ids=["steps compute longer", "workers wait for each other", "the network is fast"],
)
def test_no_network_is_blamed_for_other_waits(answer: ServerAnswer) -> None:
    assert not findings([answer], PATIENCE)


def with_tables(**figures: object) -> ServerAnswer:
    """A server with a million rows of 128 bytes, of which an eighth is in memory."""
    usual = {"rows": 10**6, "row_bytes": 128 * 10**6, "file_bytes": 160 * 10**6, "folder": "/ssd"}
    usual |= {"resident": Budget(used=16 * 10**6, limit=16 * 10**6), "free_bytes": 10**9}
    usual |= {"found_rows": 95_000, "missed_rows": 5000, "reads": 5000, "read_seconds": 0.1}
    answer = said(0)
    assert answer.status is not None
    made = TableFilesStatus(**{**usual, **figures})  # type: ignore[arg-type]
    answer.status.parameter_server.table_files.CopyFrom(made)
    return answer


def test_a_disk_of_tables_that_is_fast_and_asked_rarely_is_well() -> None:
    assert not findings([with_tables()], PATIENCE)


def test_a_disk_of_tables_that_is_slow_is_named_with_its_reads_a_second() -> None:
    (only,) = findings([with_tables(read_seconds=25.0)], PATIENCE)
    assert "disk of the tables of ps:0, /ssd, gave 200 reads a second" in only.what
    assert "--table-folder" in only.remedy
    assert not findings([with_tables(reads=900, read_seconds=25.0)], PATIENCE)


def test_a_disk_of_tables_that_has_failed_is_named_first() -> None:
    (only,) = findings([with_tables(failure="could not read", read_seconds=25.0)], PATIENCE)
    assert only.stalls and only.culprits == ("ps:0",)
    assert "ps:0 serves no tables any more: could not read" in only.what


def test_a_disk_of_tables_that_is_nearly_full_is_named() -> None:
    (only,) = findings([with_tables(free_bytes=10**6)], PATIENCE)
    assert "/ssd, has 977 KiB left, and its files have 153 MiB" in only.what


def found_by_law(exponent: float, part: float, rows: int = 10**6) -> float:
    """Return which part of the lookups by Zipf's law are for a part of the rows."""
    weights = torch.arange(1, rows + 1, dtype=torch.float64) ** -exponent
    return float(weights[: int(part * rows)].sum() / weights.sum())


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.05])
def test_a_budget_that_is_too_small_is_named_with_one_that_finds_nine_of_ten_rows(
    exponent: float,
) -> None:
    hits = found_by_law(exponent, 1 / 8)
    answer = with_tables(found_rows=int(10**6 * hits), missed_rows=int(10**6 * (1 - hits)))
    (only,) = findings([answer], PATIENCE)
    assert f"found {hits:.0%} of the rows of its tables in memory" in only.what
    wanted = int(only.remedy.partition("give --table-bytes ")[2].partition(",")[0])
    assert 0.88 <= found_by_law(exponent, wanted / (128 * 10**6)) <= 0.92


def test_a_budget_says_nothing_where_all_rows_fit_or_few_were_asked_for() -> None:
    asked = {"found_rows": 1000, "missed_rows": 50_000}
    assert findings([with_tables(**asked)], PATIENCE)
    assert not findings([with_tables(found_rows=100, missed_rows=5000)], PATIENCE)
    all_fit = Budget(used=128 * 10**6, limit=200 * 10**6)
    assert not findings([with_tables(resident=all_fit, **asked)], PATIENCE)


def test_a_budget_for_tables_that_no_table_uses_is_named() -> None:
    answer = with_tables(rows=0, row_bytes=0)
    assert not findings([answer], PATIENCE)
    assert answer.status is not None
    answer.status.parameter_server.totals.add(bytes=20 * 10**6)
    (only,) = findings([answer], PATIENCE)
    assert "ps:0 has --table-bytes" in only.what and "stratagem.nn.Embedding" in only.remedy
