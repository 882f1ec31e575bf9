"""Steps that wait for the norm of all servers' gradients."""

from __future__ import annotations

import pytest
import torch

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnfinishedStepError,
)
from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.programs.update_programs import encode_limits
from stratagem_proto.v1 import closed_step_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_psserver.synchronous.contributions import closed_total
from tests.psserver.synchronous.contributors import Cluster, mark, session
from tests.psserver.wire import RawClient, encoded, sgd, update_header

NAN = float("nan")


class Worker:
    """The only worker of a group, at one server of several."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        client.create(v=torch.zeros(2))

    def contribute(self, gradient: list[float], step: int = 1) -> None:
        value = torch.tensor(gradient)
        header = update_header(self.client.key(), sgd(), {"v": value})
        header.limits.CopyFrom(encode_limits(GradientLimits(clip_norm=10.0)))
        header.contribution.CopyFrom(
            pb.Contribution(
                step=mark(step),
                num_workers=1,
                replicas=1,
                reduction=REDUCTION_SUM,
                global_norm=True,
            )
        )
        self.client.upload("Update", encoded(header, [value]), pb.UpdateResponse)
        request = pb.CommitContributionRequest(key=self.client.key(), step=mark(step))
        self.client.unary("CommitContribution", request, pb.CommitContributionResponse)

    def closed(self, step: int = 1) -> list[tuple[int, float, bool]]:
        request = closed_step_pb2.ListClosedStepsRequest(
            session_id=self.client.session_id, group="SGD", step=step
        )
        response = self.client.unary(
            "ListClosedSteps", request, closed_step_pb2.ListClosedStepsResponse
        )
        return [(one.step, one.squares, one.finished) for one in response.steps]

    def finish(self, norm: float, step: int = 1) -> None:
        request = closed_step_pb2.FinishStepRequest(
            key=self.client.key(),
            group="SGD",
            step=step,
            norm=closed_step_pb2.GlobalNorm(value=norm),
        )
        self.client.unary("FinishStep", request, closed_step_pb2.FinishStepResponse)

    def value(self) -> list[float]:
        found: list[float] = self.client.read("v")[0].tolist()
        return found


@pytest.fixture
def worker(client: RawClient) -> Worker:
    return Worker(client)


def test_a_closed_step_is_applied_with_the_norm_that_it_is_told(
    worker: Worker,
) -> None:
    worker.contribute([3.0, 4.0])
    assert worker.closed() == [(1, 25.0, False)]
    assert worker.value() == [0.0, 0.0]
    worker.finish(20.0)
    assert worker.value() == pytest.approx([-1.5, -2.0])
    assert worker.closed() == [(1, 25.0, True)]


def test_a_step_is_finished_once(worker: Worker) -> None:
    worker.contribute([3.0, 4.0])
    for _ in range(2):
        worker.finish(5.0)
    assert worker.value() == [-3.0, -4.0]


@pytest.mark.parametrize("norm", [5.0, NAN])
def test_all_tell_the_same_norm(worker: Worker, norm: float) -> None:
    worker.contribute([3.0, 4.0])
    worker.finish(norm)
    worker.finish(norm)
    with pytest.raises(InvalidArgumentError, match="was finished with the norm"):
        worker.finish(6.0)


def test_steps_are_finished_in_their_order(worker: Worker) -> None:
    for step in (1, 2):
        worker.contribute([3.0, 4.0], step)
    assert worker.closed(1) == [(1, 25.0, False)]
    assert worker.closed(2) == [(1, 25.0, False), (2, 25.0, False)]
    with pytest.raises(FailedPreconditionError, match="step 1 is the next"):
        worker.finish(5.0, step=2)
    worker.finish(5.0, step=1)
    worker.finish(5.0, step=2)
    assert worker.closed(2) == [(2, 25.0, True)]
    assert worker.value() == [-6.0, -8.0]


def test_a_step_that_is_not_closed_cannot_be_finished(worker: Worker) -> None:
    with pytest.raises(FailedPreconditionError, match="no step waits"):
        worker.finish(5.0)


def test_the_squares_of_a_small_dtype_do_not_overflow(worker: Worker) -> None:
    worker.contribute([3e30, 0.0])
    ((_, squares, _),) = worker.closed()
    assert squares == pytest.approx(9e60)


def test_who_waits_longest_hears_that_nobody_has_finished_a_step(
    worker: Worker,
) -> None:
    worker.contribute([3.0, 4.0])
    with pytest.raises(UnfinishedStepError, match="is complete here"):
        worker.client.select(pb.ReadRequest(after=mark(), wait_seconds=0.01))


def test_all_workers_mean_the_same_norm() -> None:
    cluster = Cluster()
    cluster.stage(0)
    with pytest.raises(InvalidArgumentError, match="of all servers against of one"):
        cluster.rounds.stage(cluster.part(1, global_norm=True))


def test_who_waits_hears_when_a_worker_ends_that_was_to_finish_a_step() -> None:
    cluster = Cluster(1)
    cluster.rounds.stage(cluster.part(0, global_norm=True))
    cluster.rounds.keep("SGD", closed_total(cluster.commit(0)))
    assert cluster.rounds.is_applied(mark()) is None
    cluster.rounds.session_ended(session(0), "/job:worker/task:0 left")
    with pytest.raises(UnfinishedStepError):
        cluster.rounds.is_applied(mark())
    assert cluster.rounds.has_closed(mark())
