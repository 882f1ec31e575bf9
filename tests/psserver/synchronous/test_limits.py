"""Limits of gradients that a server keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, NonFiniteGradientError
from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.programs.update_programs import encode_limits
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, encoded, sgd, update_header

NAN = float("nan")
NAME = "dense.weight"
BAD = torch.tensor([[1.0, NAN, 3.0], [4.0, 5.0, 6.0]])


def push(
    client: RawClient,
    gradients: Mapping[str, torch.Tensor],
    limits: GradientLimits,
    contribution: pb.Contribution | None = None,
    nonfinite_variable: str = "",
) -> pb.UpdateResponse:
    header = update_header(client.key(), sgd(), gradients)
    header.limits.CopyFrom(encode_limits(limits))
    header.nonfinite_variable = nonfinite_variable
    if contribution is not None:
        header.contribution.CopyFrom(contribution)
    messages = encoded(header, list(gradients.values()))
    return client.upload("Update", messages, pb.UpdateResponse)


def test_the_gradients_of_a_request_are_clipped_together(client: RawClient) -> None:
    client.create(other=torch.zeros(1))
    gradients = {NAME: torch.full((2, 3), 3.0), "other": torch.tensor([100.0])}
    limits = GradientLimits(clip_value=4.0, clip_norm=5.0)
    push(client, gradients, limits)
    weight, other = client.read(NAME, "other")
    scale = 5 / (6 * 9 + 16) ** 0.5
    torch.testing.assert_close(weight, 1 - torch.full((2, 3), 3 * scale))
    torch.testing.assert_close(other, torch.tensor([-4 * scale]))


def test_rows_that_repeat_are_clipped_as_their_sum(client: RawClient) -> None:
    values, rows = torch.ones(3, 3), torch.tensor([1, 0, 1])
    header = pb.UpdateHeader(key=client.key(), tensors=map(spec_of, (values, rows)))
    header.program.optimizer.CopyFrom(sgd())
    header.gradients.add(variable=NAME, tensor=0, rows=1)
    header.limits.CopyFrom(encode_limits(GradientLimits(clip_value=1.5)))
    client.upload("Update", encoded(header, [values, rows]), pb.UpdateResponse)
    (after,) = client.read(NAME)
    assert after.tolist() == [[0.0] * 3, [-0.5] * 3]


def test_a_rejected_step_changes_nothing_and_says_so(client: RawClient) -> None:
    client.create(other=torch.zeros(1))
    before = client.everything()
    gradients = {NAME: BAD, "other": torch.ones(1)}
    response = push(client, gradients, GradientLimits("reject"))
    assert response.rejected
    assert list(response.versions) == [client.listing()[NAME], 1]
    assert client.everything() == before
    assert not push(client, {"other": torch.ones(1)}, GradientLimits("reject")).rejected


def test_a_failed_step_changes_nothing_and_names_the_variable(
    client: RawClient,
) -> None:
    client.create(other=torch.zeros(1))
    before = client.everything()
    with pytest.raises(NonFiniteGradientError) as caught:
        push(client, {"other": torch.ones(1), NAME: BAD}, GradientLimits("raise"))
    assert caught.value.variable == NAME
    assert client.everything() == before


def test_zero_takes_the_place_of_what_is_not_finite(client: RawClient) -> None:
    push(client, {NAME: BAD}, GradientLimits("zero"))
    (after,) = client.read(NAME)
    assert after.tolist() == [[0.0, 1.0, -2.0], [-3.0, -4.0, -5.0]]


def test_gradients_that_fit_no_variable_are_refused_before(client: RawClient) -> None:
    with pytest.raises(InvalidArgumentError, match="has shape"):
        push(client, {NAME: torch.full((4,), NAN)}, GradientLimits("reject"))


class Pair:
    """Two workers that contribute to the steps of one server."""

    def __init__(self, first: RawClient, second: RawClient) -> None:
        self.workers = (first, second)
        first.create(v=torch.zeros(2))

    def stage(
        self,
        worker: int,
        gradient: list[float],
        limits: GradientLimits,
        step: int = 1,
        nonfinite_variable: str = "",
    ) -> None:
        contribution = pb.Contribution(
            step=pb.StepMark(group="SGD", step=step),
            worker=worker,
            num_workers=2,
            replicas=1,
            reduction=REDUCTION_MEAN,
        )
        gradients = {"v": torch.tensor(gradient)} if gradient else {}
        push(self.workers[worker], gradients, limits, contribution, nonfinite_variable)

    def commit(self, step: int = 1) -> None:
        for client in self.workers:
            mark = pb.StepMark(group="SGD", step=step)
            request = pb.CommitContributionRequest(key=client.key(), step=mark)
            client.unary("CommitContribution", request, pb.CommitContributionResponse)

    def read_after(self, step: int = 1) -> tuple[int, list[float]]:
        request = pb.ReadRequest(
            selections=[pb.Selection(variable="v")],
            after=pb.StepMark(group="SGD", step=step),
            wait_seconds=20,
        )
        header, (value,) = self.workers[0].select(request)
        return header.rejected_steps, value.tolist()


@pytest.fixture
def pair(server: ParameterServer, client: RawClient) -> Iterator[Pair]:
    with RawClient(server.address, TOKEN, Task(job="worker", index=1)) as second:
        second.open()
        yield Pair(client, second)


def test_the_mean_of_a_step_is_what_is_clipped(pair: Pair) -> None:
    limits = GradientLimits(clip_norm=1.0)
    pair.stage(0, [10.0, 0.0], limits)
    pair.stage(1, [-10.0, 0.5], limits)
    pair.commit()
    assert pair.read_after() == (0, [0.0, -0.25])


@pytest.mark.parametrize("said", [False, True])
def test_a_step_with_a_bad_contribution_closes_without_a_change(pair: Pair, said: bool) -> None:
    limits = GradientLimits("reject")
    pair.stage(0, [1.0, 1.0], limits)
    pair.stage(1, [] if said else [NAN, 1.0], limits, 1, "w" if said else "")
    pair.commit()
    assert pair.read_after() == (1, [0.0, 0.0])
    for worker in (0, 1):
        pair.stage(worker, [1.0, 1.0], limits, step=2)
    pair.commit(2)
    assert pair.read_after(2) == (1, [-1.0, -1.0])


def test_everybody_hears_of_a_step_that_fails(pair: Pair) -> None:
    limits = GradientLimits("raise")
    pair.stage(0, [1.0, 1.0], limits)
    pair.stage(1, [], limits, nonfinite_variable="w")
    with pytest.raises(NonFiniteGradientError, match="'w' from /job:worker/task:1"):
        pair.commit()
    with pytest.raises(NonFiniteGradientError, match="could not be applied") as caught:
        pair.read_after()
    assert caught.value.variable == "w"
    assert pair.workers[0].read("v")[0].tolist() == [0.0, 0.0]


def test_an_infinite_sum_of_finite_gradients_is_noticed(pair: Pair) -> None:
    limits = GradientLimits("reject")
    for worker in (0, 1):
        pair.stage(worker, [3e38, 0.0], limits)
    pair.commit()
    assert pair.read_after() == (1, [0.0, 0.0])


def test_workers_that_differ_in_their_limits_are_told(pair: Pair) -> None:
    pair.stage(0, [1.0, 1.0], GradientLimits(clip_norm=1.0))
    with pytest.raises(InvalidArgumentError, match="limits of gradients"):
        pair.stage(1, [1.0, 1.0], GradientLimits(clip_norm=2.0))


def test_only_contributions_with_a_decision_say_that_they_lack_gradients(
    client: RawClient, pair: Pair
) -> None:
    with pytest.raises(InvalidArgumentError, match="only contributions"):
        push(client, {}, GradientLimits("reject"), nonfinite_variable="w")
    with pytest.raises(InvalidArgumentError, match="say REJECT or RAISE"):
        pair.stage(1, [], GradientLimits(), nonfinite_variable="w")
