"""Device filters: what a task does not see, it neither lists, uses nor calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    ClusterDeviceFilters,
    ClusterSpec,
    ConfigProto,
    ParameterServerStrategy,
    Variable,
)
from stratagem._cluster.device_filters import TaskView
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_psserver.server import ParameterServer
from tests.client.clusters import running
from tests.conftest import TOKEN

NOWHERE = "nowhere.invalid:1"
FIRST = "/job:ps/task:0"


@pytest.mark.spec("FIL-1")
@pytest.mark.parametrize("wrong", ["/job:ps", [1]])
def test_a_device_filter_is_a_string_in_a_list(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"/job:ps/task:0 is a list of strings"):
        ClusterDeviceFilters().set_device_filters("ps", 0, wrong)


@pytest.mark.spec("FIL-3")
@pytest.mark.parametrize(
    ("filters", "device", "seen"),
    [
        ([], "/job:ps/task:1", True),
        (["/job:ps"], "/job:ps/task:1", True),
        (["/job:ps/task:1"], "/job:ps/replica:0/task:1/device:CPU:0", True),
        (["/job:ps/task:0"], "/job:ps/task:1", False),
        (["/job:ps/task:0", "/job:ps/task:1"], "/job:ps/task:1", True),
        (["/job:ps"], "/job:worker/task:1", False),
        (["/job:ps"], "/job:worker/task:0/device:GPU:0", True),
    ],
)
def test_a_filter_is_a_part_of_a_device_name(filters: list[str], device: str, seen: bool) -> None:
    view = TaskView("/job:worker/task:0", ((), filters))
    assert list(view.hiding(device)) == ([] if seen else filters)


def strategy_of(
    servers: list[str], task: int = 0, job: str = "worker", **settings: Any
) -> ParameterServerStrategy:
    spec = ClusterSpec({"ps": servers, "worker": ["w0.test:1", "w1.test:1"]})
    resolver = SimpleClusterResolver(spec, task_type=job, task_id=task)
    settings = {"token": TOKEN, "connect_seconds": 1.0, **settings}
    return ParameterServerStrategy(resolver, **settings)


@pytest.mark.spec("FIL-2")
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_servers_that_the_session_does_not_see_are_not_contacted(
    server: ParameterServer, consistency: str
) -> None:
    strategy = strategy_of(
        [server.address, NOWHERE],
        session_config=ConfigProto(device_filters=["/job:worker", FIRST]),
        consistency=consistency,
        peer_seconds=5.0,
    )
    assert strategy.extended.parameter_devices == (FIRST,)
    with strategy, strategy.scope():
        variables = [Variable(float(index)) for index in range(3)]
        variables[1].assign_add(1.0)
        placements = strategy.extended.variable_placements()
        assert [v.read_value().item() for v in variables] == [0.0, 2.0, 2.0]
    assert [place.server for place in placements] == [FIRST] * 3


@pytest.mark.spec("FIL-3")
def test_every_task_places_variables_where_the_chief_sees_servers(
    server: ParameterServer,
) -> None:
    filters = ClusterDeviceFilters()
    filters.set_device_filters("worker", 0, [FIRST])
    servers = [server.address, NOWHERE]
    with (
        strategy_of(servers, device_filters=filters) as chief,
        strategy_of(servers, 1, device_filters=filters) as other,
    ):
        for strategy in (chief, other):
            with strategy.scope():
                created = [Variable([1.0], name=name) for name in "ab"]
        assert {v.device_name.partition("/device")[0] for v in created} == {
            "/job:ps/replica:0/task:0"
        }
        assert other.extended.parameter_devices == (FIRST,)


@pytest.mark.spec("FIL-3")
def test_a_variable_on_a_server_that_is_hidden_says_which_filters_hide_it() -> None:
    filters = ClusterDeviceFilters()
    filters.set_device_filters("worker", 1, [FIRST])
    message = (
        r"/job:ps/task:1 is invisible to /job:worker/task:1: its device filters "
        r"\['/job:ps/task:0'\] hide it; add '/job:ps/task:1'"
    )
    with (
        running(num_servers=2, num_workers=2) as cluster,
        cluster.strategy() as chief,
        cluster.strategy(1, device_filters=filters) as strategy,
    ):
        with chief.scope():
            shared = [Variable(1.0, name=name) for name in "ab"]
        assert [v.read_value().item() for v in shared] == [1.0, 1.0]
        assert strategy.extended.parameter_devices == (FIRST,)
        with strategy.scope():
            Variable(1.0, name="a")
            with pytest.raises(RuntimeError, match=message):
                Variable(1.0, name="b")
        with pytest.raises(stratagem.FailedPreconditionError, match=message):
            strategy.extended.reduce_to("mean", torch.ones(1), "/job:ps/task:1")
        strategy.extended.reduce_to("mean", torch.ones(1), FIRST)


@pytest.mark.spec("FIL-2")
def test_a_checkpoint_needs_a_chief_who_sees_all_servers(
    server: ParameterServer, tmp_path: Path
) -> None:
    """Otherwise servers would have no part to go on from."""
    config = ConfigProto(device_filters=["/job:worker", FIRST])
    with (
        strategy_of([server.address, NOWHERE], session_config=config) as strategy,
        pytest.raises(
            RuntimeError,
            match=r"a checkpoint needs all servers, but /job:ps/task:1 is invisible to "
            r".*\['/job:worker', '/job:ps/task:0'\] hide it",
        ),
    ):
        strategy.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.spec("FIL-3")
def test_a_task_without_servers_cannot_wait_for_a_checkpoint(
    server: ParameterServer, tmp_path: Path
) -> None:
    filters = ClusterDeviceFilters()
    filters.set_device_filters("worker", 1, ["/job:worker"])
    with strategy_of([server.address]) as chief:
        chief.save(tmp_path / "run")
    with (
        strategy_of([server.address], 1, device_filters=filters) as strategy,
        pytest.raises(RuntimeError, match=r"task:0 is invisible to /job:worker/task:1"),
    ):
        strategy.restore(tmp_path / "run")


@pytest.mark.spec("FIL-2")
def test_someone_has_to_be_seen() -> None:
    config = ConfigProto(device_filters=["/job:worker"])
    with pytest.raises(ValueError, match=r"\['/job:worker'\] hide all parameter servers"):
        strategy_of([NOWHERE], session_config=config)


@pytest.mark.spec("FIL-2")
def test_a_filter_that_names_no_device_is_refused() -> None:
    config = ConfigProto(device_filters=["ps"])
    with pytest.raises(ValueError, match="'ps' is not a device name"):
        strategy_of([NOWHERE], session_config=config)


@pytest.mark.spec("FIL-4")
def test_variables_of_a_cluster_outlive_the_session(server: ParameterServer) -> None:
    for expected in (1.0, 2.0):
        with strategy_of([server.address]) as strategy:
            config = strategy.update_config_proto(ConfigProto())
            assert not config.isolate_session_state
            with strategy.scope():
                counter = Variable(0.0, name="counter")
            counter.assign_add(1.0)
            assert counter.read_value().item() == expected


@pytest.mark.spec("FIL-4")
def test_variables_without_a_cluster_die_with_their_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for _ in range(2):
        strategy = ParameterServerStrategy()
        assert strategy.update_config_proto(ConfigProto()).isolate_session_state
        with strategy.scope():
            counter = Variable(0.0, name="counter")
        counter.assign_add(1.0)
        assert counter.read_value().item() == 1.0
