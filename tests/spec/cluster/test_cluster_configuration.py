"""What ParameterServerStrategy does to session configurations."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem import (
    ClusterSpec,
    ConfigProto,
    FailedPreconditionError,
    ParameterServerStrategy,
    Variable,
    contrib,
)
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.deprecations import warns_to_use

CLUSTER = {
    "chief": ["c0.test:1"],
    "worker": ["w0.test:1", "w1.test:1"],
    "ps": ["p0.test:1", "p1.test:1"],
    "evaluator": ["e0.test:1"],
}


def strategy_of(job: str, task: int = 0) -> ParameterServerStrategy:
    spec = ClusterSpec(CLUSTER)
    return ParameterServerStrategy(SimpleClusterResolver(spec, task_type=job, task_id=task))


def given() -> ConfigProto:
    cluster = ClusterSpec({"worker": ["w:1"]}).as_cluster_def()
    return ConfigProto(
        device_filters=["/job:tpu_worker"],
        isolate_session_state=True,
        cluster_def=cluster,
    )


@pytest.mark.spec("PCF-4")
def test_a_server_runs_no_program_of_the_strategy() -> None:
    strategy = strategy_of("ps")
    assert not strategy.extended.should_checkpoint
    assert list(strategy.update_config_proto(given()).device_filters) == []
    with (
        strategy.scope(),
        pytest.raises(FailedPreconditionError, match="ps/task:0 is a parameter server"),
    ):
        Variable(1.0)


@pytest.mark.spec("PCF-6")
def test_the_first_version_configures_in_place() -> None:
    config = given()
    with warns_to_use("stratagem.ParameterServerStrategy"):
        strategy = contrib.ParameterServerStrategy()
    with warns_to_use("update_config_proto"):
        strategy.configure(config)
    assert config == given()
    place: dict[str, Any] = {"task_type": "worker", "task_id": 1}
    strategy.configure(config, CLUSTER, **place)
    assert list(config.device_filters) == ["/job:worker/task:1", "/job:ps"]
    assert not config.isolate_session_state


@pytest.mark.spec("PCF-7")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_cluster_is_configured_once() -> None:
    config = ConfigProto()
    strategy = contrib.ParameterServerStrategy()
    strategy.configure(None, CLUSTER, "chief", 0)
    strategy.configure(config, {"ps": ["p:1"], "worker": ["w:1"]}, "worker", 0)
    assert list(config.device_filters) == ["/job:chief/task:0", "/job:ps"]
    assert len(strategy.parameter_devices) == 2
