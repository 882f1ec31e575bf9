"""Resolvers, and TF_CONFIG in particular."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratagem import ClusterSpec, InvalidArgumentError
from stratagem.cluster_resolver import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
)

CLUSTER = {"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1"]}


def set_tf_config(monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_a_resolver_has_to_say_what_the_cluster_is() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ClusterResolver()  # type: ignore[abstract]


@pytest.mark.spec("RES-1")
def test_a_simple_resolver_returns_what_it_was_given() -> None:
    spec = ClusterSpec(CLUSTER)
    resolver = SimpleClusterResolver(
        spec, "m:9", "worker", 0, "lab", {"GPU": 4}, rpc_layer="grpc"
    )
    assert resolver.cluster_spec() is spec
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.environment == "lab"
    assert resolver.num_accelerators("worker", 1) == {"GPU": 4}
    assert resolver.master() == "grpc://m:9"


@pytest.mark.spec("RES-1")
def test_a_simple_resolver_formats_the_address_of_the_task_asked_for() -> None:
    resolver = SimpleClusterResolver(ClusterSpec(CLUSTER), task_type="ps", task_id=1)
    assert resolver.master() == ""
    assert resolver.master("worker", 0) == "w0:1"
    assert resolver.master("worker", 0, rpc_layer="grpc") == "grpc://w0:1"
    resolver.rpc_layer = "grpc"
    assert resolver.master() == "grpc://"


@pytest.mark.spec("RES-1")
def test_a_simple_resolver_can_be_told_its_task_later() -> None:
    resolver = SimpleClusterResolver(ClusterSpec(CLUSTER))
    assert (resolver.task_type, resolver.task_id) == (None, None)
    resolver.task_type, resolver.task_id = "worker", 1
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


@pytest.mark.spec("RES-1")
@pytest.mark.parametrize(
    "arguments",
    [{"cluster_spec": CLUSTER}, {"cluster_spec": ClusterSpec({}), "master": 1}],
)
def test_a_simple_resolver_refuses_other_types(arguments: Any) -> None:
    with pytest.raises(TypeError):
        SimpleClusterResolver(**arguments)


@pytest.mark.spec("RES-7", "RES-8")
def test_tf_config_gives_cluster_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(
        monkeypatch,
        cluster=CLUSTER,
        task={"type": "worker", "index": "1"},
        rpc_layer="grpc",
        environment="cloud",
        comment="other programs have keys of their own here",
    )
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == CLUSTER
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.environment == "cloud"
    assert resolver.master() == "grpc://w1:1"
    assert resolver.master("ps", 0) == "grpc://p0:1"


@pytest.mark.spec("RES-7", "RES-11")
def test_tf_config_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = TFConfigClusterResolver()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not resolver.cluster_spec()
    assert resolver.task_id is None
    assert resolver.master() == ""
    set_tf_config(monkeypatch, cluster={"worker": {"3": "w3:1"}})
    assert resolver.cluster_spec() == {"worker": {3: "w3:1"}}


@pytest.mark.spec("RES-10")
def test_arguments_and_setters_go_before_tf_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_tf_config(
        monkeypatch,
        cluster=CLUSTER,
        task={"type": "worker", "index": 1},
        rpc_layer="grpc",
    )
    resolver = TFConfigClusterResolver("ps", 0, "http", "lab")
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.environment == "lab"
    assert resolver.master() == "http://p0:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, ""
    assert resolver.master() == "w0:1"


@pytest.mark.spec("RES-9")
def test_a_session_master_is_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, cluster=CLUSTER, session_master="m:9", rpc_layer="grpc")
    assert TFConfigClusterResolver().master("ps", 1) == "grpc://m:9"


@pytest.mark.spec("RES-9")
def test_a_cluster_of_one_task_needs_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, cluster={"worker": ["w0:1"]}, rpc_layer="grpc")
    assert TFConfigClusterResolver().master() == ""


@pytest.mark.spec("RES-9")
def test_without_a_task_there_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, cluster=CLUSTER)
    with pytest.raises(ValueError, match="No such job in cluster"):
        TFConfigClusterResolver().master()


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"task": {"index": "first"}}, "TF_CONFIG.task.index is 'first'"),
        ({"task": {"type": 7}}, "TF_CONFIG.task.type is 7"),
        ({"task": "worker"}, "TF_CONFIG.task is 'worker'"),
        ({"cluster": {"ps": "p0:1"}}, "TF_CONFIG.cluster.ps is 'p0:1'"),
        ({"cluster": {"ps": ["p0:1", 2]}}, "TF_CONFIG.cluster.ps.1 is 2"),
        ({"cluster": {"ps": {"x": "p0:1"}}}, "TF_CONFIG.cluster.ps.x is 'x'"),
        ({"rpc_layer": 1}, "TF_CONFIG.rpc_layer is 1"),
    ],
)
def test_what_is_wrong_in_tf_config_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], path: str
) -> None:
    set_tf_config(monkeypatch, **config)
    with pytest.raises(InvalidArgumentError) as caught:
        TFConfigClusterResolver().cluster_spec()
    assert str(caught.value).startswith(path)


@pytest.mark.spec("RES-7")
def test_tf_config_that_is_no_json_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{'cluster'")
    with pytest.raises(ValueError, match=r"TF_CONFIG is not JSON.*\{'cluster'"):
        _ = TFConfigClusterResolver().task_type
