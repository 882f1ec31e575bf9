"""Workers that speak to real servers, and record what they do and see."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import grpc
import numpy as np
import torch

from stratagem._parameter_server.hosting.steps import (
    decoded_consistency,
    encoded_consistency,
)
from stratagem.consistency import Consistency, Sync
from stratagem_proto.v1 import consistency_pb2, session_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM, OptimizerProgram
from stratagem_proto.wire.frames import decode_frame
from tests.consistency.history import (
    Answered,
    Event,
    Gone,
    Leave,
    Read,
    Reading,
    Seen,
    Sent,
)
from tests.psserver.wire import (
    SERVICE,
    RawClient,
    optimizer_program,
    update_header,
)
from tests.psserver.wire import (
    encoded as frames_of,
)

PATIENCE = 60.0
_reads, _groups = count(), count()
READS = 16  # that a worker sends for a step, to each server


def program(group: str) -> OptimizerProgram:
    """Adds gradients in the first param group, and stores them in the second."""
    adding = {"params": [torch.empty(0)], "lr": 1.0, "maximize": True}
    storing = {"params": [torch.empty(0)], "lr": 1.0, "weight_decay": 1.0}
    return optimizer_program(torch.optim.SGD([adding, storing]), group)


def variables(group: str, num_workers: int) -> dict[str, torch.Tensor]:
    """What each server hosts: the workers' counts, and the last step of each."""
    lasts = {f"{group}/last{worker}": torch.zeros(1) for worker in range(num_workers)}
    return {f"{group}/counts": torch.zeros(num_workers), **lasts}


class RemoteWorker:
    """One worker.

    Args:
        group: Name of what is stepped.
        number: Which worker.
        num_workers: Of how many.
        servers: Addresses of the servers.
        history: Where it writes what happens; all workers share it.
        reads: Numbers for reads.
    """

    def __init__(
        self,
        group: str,
        number: int,
        num_workers: int,
        servers: Sequence[str],
        history: list[Event],
    ) -> None:
        task = session_pb2.Task(job="worker", index=number)
        self.clients = [RawClient(address, "", task) for address in servers]
        for client in self.clients:
            client.open()
        self._number, self._num_workers = number, num_workers
        self._history = history
        self._program = program(group)
        self._group = group
        names = variables(group, num_workers)
        self._selections = [pb.Selection(variable=name) for name in names]
        self._finished = self._counted = 0

    def train(self, consistency: Consistency, steps: int) -> None:
        """Takes steps and leaves."""
        while (leave := self._begin(consistency)).step <= steps:
            for client in self.clients * READS:
                self._read(client)
            self._step(leave)
        self._history.append(Gone(self._number))
        for client in self.clients:
            request = session_pb2.CloseSessionRequest(session_id=client.session_id)
            client.unary("CloseSession", request, session_pb2.CloseSessionResponse)

    def _begin(self, consistency: Consistency) -> Leave:
        begin = consistency_pb2.StepBegin(
            group=self._group,
            worker=self._number,
            num_workers=self._num_workers,
            finished=self._finished,
            declared=encoded_consistency(consistency),
        )
        request = consistency_pb2.BeginStepRequest(
            session_id=self.clients[0].session_id, steps=[begin], wait_seconds=PATIENCE
        )
        response = self.clients[0].unary(
            "BeginStep", request, consistency_pb2.BeginStepResponse, PATIENCE
        )
        (grant,) = response.grants
        leave = Leave(self._number, grant.step, decoded_consistency(grant.consistency))
        self._history.append(leave)
        self._after = max(self._counted, grant.closed)
        return leave

    def _read(self, client: RawClient) -> None:
        request = pb.ReadRequest(
            session_id=client.session_id,
            selections=self._selections,
            wait_seconds=PATIENCE,
        )
        if self._after:
            request.after.CopyFrom(pb.StepMark(group=self._group, step=self._after))
        read = next(_reads)
        self._history.append(Reading(self._number, read))
        # A stream of one message is a unary call on the wire, which costs less.
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = client.channel.unary_unary(f"/{SERVICE}/Read")
        answer = call(request.SerializeToString(), timeout=PATIENCE)
        self._history.append(Read(self._number, read, self._seen(answer)))

    def _seen(self, answer: bytes) -> list[Seen]:
        """All tensors are small, so they come in one frame and one chunk each."""
        chunks = decode_frame(answer, pb.ReadHeader).chunks
        counts, *lasts = [np.frombuffer(chunk.data, np.float32) for chunk in chunks]
        return [(int(c), int(last[0])) for c, last in zip(counts, lasts, strict=True)]

    def _step(self, leave: Leave) -> None:
        self._history.append(Sent(self._number, leave.step))
        mark = pb.StepMark(group=self._group, step=leave.step)
        contribution = self._contribution(leave, mark)
        for client in self.clients:
            self._push(client, leave.step, contribution)
        counted = contribution is None or self._commit(mark, contribution)
        self._history.append(Answered(self._number, leave.step, counted))
        self._finished = leave.step
        if contribution is not None and counted:
            self._counted = leave.step

    def _contribution(self, leave: Leave, mark: pb.StepMark) -> pb.Contribution | None:
        if not isinstance(leave.consistency, Sync):
            return None
        return pb.Contribution(
            step=mark,
            worker=self._number,
            num_workers=self._num_workers,
            replicas=1,
            reduction=REDUCTION_SUM,
            replicas_to_aggregate=leave.consistency._enough(self._num_workers),
        )

    def _push(self, client: RawClient, step: int, contribution: pb.Contribution | None) -> None:
        one = torch.zeros(self._num_workers)
        one[self._number] = 1.0
        gradients = {
            f"{self._group}/counts": one,
            f"{self._group}/last{self._number}": torch.full((1,), -float(step)),
        }
        header = update_header(client.key(), self._program, gradients)
        header.gradients[1].group = 1
        if contribution is not None:
            header.contribution.CopyFrom(contribution)
        messages = frames_of(header, list(gradients.values()))
        client.upload("Update", messages, pb.UpdateResponse)

    def _commit(self, mark: pb.StepMark, contribution: pb.Contribution) -> bool:
        backups = bool(contribution.replicas_to_aggregate)
        for client in self.clients if backups else self.clients[::-1]:
            request = pb.CommitContributionRequest(key=client.key(), step=mark)
            response = client.unary("CommitContribution", request, pb.CommitContributionResponse)
            if response.dropped:
                return False
        return True


def trained(
    servers: Sequence[str], consistency: Consistency, num_workers: int, steps: int
) -> list[Event]:
    """Has workers train in threads of their own; returns what happened."""
    history: list[Event] = []
    group = f"SGD_{next(_groups)}"
    workers = [
        RemoteWorker(group, number, num_workers, servers, history) for number in range(num_workers)
    ]
    for client in workers[0].clients:
        client.create(**variables(group, num_workers))
    with ThreadPoolExecutor(num_workers) as threads:
        list(threads.map(lambda worker: worker.train(consistency, steps), workers))
    return history
