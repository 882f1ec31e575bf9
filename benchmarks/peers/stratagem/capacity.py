"""What a worker's step costs a server: `... benchmarks.peers.stratagem.capacity FD LOAD FILE`.

LOAD is "small" or "rows", as in `loads`, or "clicks": the lookups and pushes of the click model,
whose examples are in FILE. Workers are threads of this process and compute nothing. Answers are
seconds a step: to "processor 4", with 4 workers, what the server uses of processors, and to "full
4" what each of three processes uses meanwhile that never wait, and share a core with the server.
All use the same of it if the server never waits either; that others use it, too, makes no
difference.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.peers import clicks
from benchmarks.peers.click_model import ClickModel, our_table
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import family, processor_seconds
from benchmarks.peers.stratagem.clusters import cluster
from benchmarks.peers.stratagem.loads import LOADS, create
from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.session import Identity
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_WORKER

WORKERS = 4
# The fewer steps then fill a server, the surer workers come to them.
_NEVER_WAIT = 3
# Until there is nobody whose core it shares.
_BUSY = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: pass"
_BATCH, _BATCHES = 1024, 16

Step: TypeAlias = Callable[[], object]


def requesting(opened: ExitStack, resolver: ClusterResolver, load: str) -> Step:
    """What takes a step of a load as one worker, the first of which creates the variables."""
    worker = resolver.task_id or 0
    address = resolver.cluster_spec().task_address("ps", 0)
    role = ROLE_WORKER if worker else ROLE_CHIEF
    identity = Identity(role, "worker", worker, resolver.cluster_token or "")
    servers = ServerGroup([address], identity)
    opened.callback(servers.close)
    if not worker:
        create(servers, load)
    requests = LOADS[load](servers, worker)

    def step() -> None:
        requests.pull()
        requests.push()

    return step


def clicking(opened: ExitStack, resolver: ClusterResolver, file: str) -> Step:
    """What looks up and pushes what a batch of the click model does, and computes nothing."""
    strategy = opened.enter_context(ParameterServerStrategy(resolver))
    log = clicks.Log(file)
    with strategy.scope():
        model = ClickModel(our_table, log.weights)
    optimizer = DistributedOptimizer(model.adagrad())
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    gradients = [torch.full_like(each, 1e-6) for each in dense]
    batches = itertools.cycle(
        [torch.from_numpy(b.ids) for b in islice(log.batches(_BATCH), _BATCHES)]
    )
    ones = torch.full((_BATCH, clicks.DIM), 1e-6)

    def compute(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        model.prefetch(ids)
        vectors = model.embedded(ids)
        torch.autograd.backward(vectors, [ones] * len(vectors))
        for parameter, gradient in zip(dense, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    def step() -> None:
        strategy.run(compute, args=(next(batches),))

    if not resolver.task_id:
        # So that all rows that are looked up are there.
        for _ in range(_BATCHES):
            step()
    return step


@dataclass
class Crowd:
    """Workers that take steps at the same time, as fast as they can.

    Args:
        steps: What takes a step of each.
    """

    steps: Sequence[Step]

    def cost(self, workers: int, seconds: float) -> float:
        """Return the processor seconds of the server for a step of so many workers."""
        before = _used_by_server()
        taken = self._taken(workers, seconds)
        # In a test the server is a thread of this process, and the difference a rounding error.
        return max(0.0, _used_by_server() - before) / taken

    def saturated(self, workers: int, seconds: float) -> float:
        """Return the processor seconds for a step that a server has which fills a core."""
        with _shared_core() as busy:
            before = sum(map(processor_seconds, busy))
            taken = self._taken(workers, seconds)
            return (sum(map(processor_seconds, busy)) - before) / len(busy) / taken

    def _taken(self, workers: int, seconds: float) -> int:
        end = time.perf_counter() + seconds

        def take(step: Step) -> int:
            for taken in itertools.count():
                if taken and time.perf_counter() >= end:
                    return taken
                step()
            raise AssertionError

        with ThreadPoolExecutor(workers) as threads:
            return sum(threads.map(take, self.steps[:workers]))


def _used_by_server() -> float:
    return processor_seconds(os.getpid()) - time.process_time()


@contextmanager
def _shared_core() -> Iterator[Sequence[int]]:
    """Let our children share a core with processes that never wait, which this yields."""
    cores = sorted(os.sched_getaffinity(0))
    others = family(os.getpid())[1:]
    with ExitStack() as opened:
        busy = [opened.enter_context(_busy()) for _ in range(_NEVER_WAIT)]
        opened.callback(_keep, [*others, os.getpid()], cores)
        _keep([*others, *busy], cores[:1])
        # So that workers leave it to them.
        _keep([os.getpid()], cores[1:] or cores)
        yield busy


@contextmanager
def _busy() -> Iterator[int]:
    # As servers have: a session's processes share what the kernel gives it.
    program = [sys.executable, "-c", _BUSY]
    busy = subprocess.Popen(program, start_new_session=True, stdin=subprocess.PIPE)
    try:
        yield busy.pid
    finally:
        busy.communicate()


def _keep(processes: Collection[int], cores: Collection[int]) -> None:
    """Have all threads of processes run on these cores alone."""
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("*"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def contestant(load: str, file: str) -> Iterator[Answer]:
    """What has a server and the workers."""
    torch.set_num_threads(1)
    with ExitStack() as opened:
        running = opened.enter_context(cluster(ps=1, workers=WORKERS))
        resolvers = [running.resolver("worker", index) for index in range(WORKERS)]
        begin = clicking if load == "clicks" else requesting
        argument = file if load == "clicks" else load
        crowd = Crowd([begin(opened, resolver, argument) for resolver in resolvers])
        kinds = {"processor": crowd.cost, "full": crowd.saturated}

        def answer(question: str, seconds: float) -> float:
            kind, workers = question.split()
            return kinds[kind](int(workers), seconds)

        yield answer


if __name__ == "__main__":
    serve(contestant)
