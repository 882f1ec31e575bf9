"""Workers that contribute to one server's rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM, OptimizerProgram
from stratagem_psserver.limits import Budget
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.synchronous.contributions import Part
from stratagem_psserver.synchronous.rounds import Rounds
from tests.psserver.wire import sgd

BUDGET = 20_000
PART_BYTES = 10


def mark(step: int = 1) -> StepMark:
    return StepMark(group="SGD", step=step)


class Cluster:
    """Workers that contribute to one server's rounds."""

    def __init__(self, num_workers: int = 2, replicas_to_aggregate: int = 0) -> None:
        self.rounds = Rounds()
        self.replicas_to_aggregate = replicas_to_aggregate
        self.budget = Budget(BUDGET)
        self.num_workers = num_workers

    def part(
        self,
        task: int,
        step: int = 1,
        gradients: Mapping[str, Gradient] | None = None,
        program: OptimizerProgram | None = None,
        **fields: Any,
    ) -> Part:
        terms: dict[str, Any] = {
            "worker": task,
            "num_workers": self.num_workers,
            "replicas_to_aggregate": self.replicas_to_aggregate,
            "replicas": 1,
            "reduction": REDUCTION_SUM,
        }
        return Part(
            session_id=session(task),
            task=f"/job:worker/task:{task}",
            contribution=Contribution(step=mark(step), **terms | fields),
            program=program or sgd(),
            gradients=gradients or {},
            reservation=self.budget.reserve(PART_BYTES, "a part"),
        )

    def returned(self, task: int, **settings: Any) -> Part:
        """The part of a worker that was started again."""
        part = self.part(task, **settings)
        part.session_id = b"a new session id"
        self.rounds.session_opened(part.session_id, part.task)
        return part

    def stage(self, worker: int, step: int = 1) -> None:
        self.rounds.stage(self.part(worker, step))

    def commit(self, worker: int, step: int = 1) -> list[Part]:
        task = f"/job:worker/task:{worker}"
        return self.rounds.commit(session(worker), task, mark(step))

    def complete(self, step: int = 1) -> None:
        for worker in range(self.num_workers):
            self.stage(worker, step)
        for worker in range(self.num_workers):
            for part in self.commit(worker, step):
                part.reservation.release()
        self.rounds.finish(mark(step))


def session(worker: int) -> bytes:
    return worker.to_bytes(16, "big")
