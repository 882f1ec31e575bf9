"""Workers that attach to the variables that the chief created."""

from __future__ import annotations

import pytest
from torch import nn

import stratagem
from stratagem import AttachmentError, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import Cluster
from tests.client.networks import equal, network
from tests.conftest import TOKEN


def test_a_worker_attaches_to_what_the_chief_created(cluster: Cluster) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> nn.Module:
        with strategy.scope():
            return network(seed=worker)

    chiefs, others = cluster.run(program)
    assert equal(chiefs, network(seed=0))
    assert equal(others, chiefs)


def test_a_worker_with_another_program_sees_the_first_difference_at_once(
    cluster: Cluster,
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> nn.Module:
        with strategy.scope():
            return nn.Sequential(nn.Linear(3, 4), nn.Linear(4 + worker, 2))

    with cluster.strategy(0) as chief:
        program(chief, 0)
    with (
        cluster.strategy(1) as worker,
        pytest.raises(AttachmentError) as caught,
    ):
        program(worker, 1)
    message = str(caught.value)
    assert "variable 2 of the chief's program, or of one before it, is '1.weight'" in message
    assert "(2, 4)" in message
    assert "(2, 5)" in message
    assert "/job:worker/task:1" in message


def test_a_worker_that_waits_in_vain_lists_what_is_missing(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, chief.scope():
        Variable(1.0, name="first")
    with cluster.strategy(1, peer_seconds=0.2) as worker, worker.scope():
        Variable(1.0, name="first")
        with pytest.raises(AttachmentError, match="are missing: second"):
            Variable(1.0, name="second")


def test_an_evaluator_attaches_and_reads(cluster: Cluster) -> None:
    spec = stratagem.ClusterSpec({**cluster.spec.as_dict(), "evaluator": ["e:1"]})
    with cluster.strategy() as chief, chief.scope():
        trained = network(3)
    resolver = SimpleClusterResolver(spec, task_type="evaluator", task_id=0)
    with ParameterServerStrategy(resolver, token=TOKEN) as evaluator:
        with evaluator.scope():
            seen = network(4)
        assert evaluator.extended.should_checkpoint
    assert equal(seen, trained)
