"""Headers of steps, and what is kept of them."""

from __future__ import annotations

import torch

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.fast.plans import StepPlan, StepPlans
from tests.psserver.wire import (
    optimizer_program,
    update_header,
)

NAMES = ("w", "b")


def adam(lr: float = 0.1, amsgrad: bool = False) -> OptimizerProgram:
    parameters = [torch.empty(0)]
    return optimizer_program(torch.optim.Adam(parameters, lr=lr, amsgrad=amsgrad))


def header(*names: str, lr: float = 0.1, sequence: int = 1) -> pb.UpdateHeader:
    gradients = {name: torch.ones(3) for name in names or NAMES}
    return update_header(RequestKey(sequence=sequence), adam(lr), gradients)


def kept(plans: StepPlans, asked: pb.UpdateHeader) -> StepPlan:
    """The plan of an update that was carried out."""
    plan = plans.plan(asked)
    assert plan is not None
    plans.keep(plan)
    return plan
