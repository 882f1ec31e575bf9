"""Questions to a worker server, outside of any session of a strategy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from stratagem._hosts.crew import connected, secret_of
from stratagem._shipping.parcel import Parcel
from stratagem._shipping.pickles.pickling import Pickler
from stratagem._shipping.residents.results import load_result
from stratagem.cluster_resolver import ClusterResolver


def asked(
    resolver: ClusterResolver, job: str, task: int, question: Callable[[], Any]
) -> Any:
    """Return what a function returns on a worker server.

    Args:
        resolver: Describes the cluster.
        job: Its job.
        task: Its index.
        question: The function; it uses nothing that belongs to a strategy.

    Raises:
        InvalidArgumentError: The cluster has no such task.
        UnavailableError: It cannot be reached.
        UnauthenticatedError: It has another cluster token.
    """
    address = resolver.cluster_spec().task_address(job, task)
    (worker,) = connected([(task, address)], job, secret_of(resolver))
    try:
        payload = pickle.dumps(({}, Pickler(lambda _: None).write(question)))
        answer = worker.call(Parcel(payload, (), {}, ()))
        return load_result(answer.result().payload)
    finally:
        worker.close()
