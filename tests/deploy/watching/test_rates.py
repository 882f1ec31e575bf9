"""What happens by the second, between two looks."""

from __future__ import annotations

from stratagem_deploy.dashboard.view import steps_by_worker
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, seconds_between
from stratagem_deploy.watching.rows import progress_of
from stratagem_proto.v1.consistency_pb2 import GroupConsistency, WorkerClock
from stratagem_proto.v1.status_pb2 import GetStatusResponse, ParameterServerStatus

PLACE = ServerPlace("127.0.0.1:1")


def answer(run: bytes, uptime: float, finished: int, time: float) -> ServerAnswer:
    """What a server says whose only worker has finished so many steps."""
    clock = WorkerClock(task="/job:worker/task:0", finished=finished)
    groups = [GroupConsistency(group="Adam", workers=[clock])]
    status = GetStatusResponse(
        incarnation=run,
        uptime_seconds=uptime,
        parameter_server=ParameterServerStatus(groups=groups),
    )
    return ServerAnswer(PLACE, status, time=time)


def test_a_look_that_waited_for_a_dead_server_makes_no_rate_lower() -> None:
    earlier, later = answer(b"run", 10.0, 100, 50.0), answer(b"run", 12.0, 140, 57.0)
    dead = ServerAnswer(PLACE, None, "it does not answer", 57.0)
    assert seconds_between([dead, later], [dead, earlier]) == 2.0
    (progress,) = progress_of([dead, later], [dead, earlier])
    assert progress.by_the_second == 20.0


def test_steps_of_a_server_that_was_started_again_are_not_negative() -> None:
    (progress,) = progress_of([answer(b"new", 1.0, 3, 12.0)], [answer(b"old", 99.0, 900, 10.0)])
    assert progress.by_the_second == 0.0


def test_without_a_server_that_answered_both_looks_this_clock_counts() -> None:
    dead = [ServerAnswer(PLACE, None, "it does not answer", time) for time in (3.0, 8.0)]
    assert seconds_between([dead[1]], [dead[0]]) == 5.0
    assert seconds_between([], []) == 1.0


def test_a_step_under_two_optimizers_is_one_step() -> None:
    earlier, later = answer(b"run", 10.0, 100, 50.0), answer(b"run", 12.0, 140, 52.0)
    for each, finished in ((earlier, 20), (later, 28)):
        assert each.status is not None
        clock = WorkerClock(task="/job:worker/task:0", finished=finished)
        each.status.parameter_server.groups.add(group="SGD", workers=[clock])
    assert steps_by_worker([later], [earlier]) == {"worker:0": 20.0}
