"""Resolvers: those that are told the cluster, TF_CONFIG, and several together."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from stratagem import ClusterSpec, DuplicateTaskError, InvalidArgumentError
from stratagem.cluster_resolver import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionResolver,
)

CLUSTER = {"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1"]}


def set_tf_config(monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_a_resolver_has_to_say_what_the_cluster_is() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ClusterResolver()  # type: ignore[abstract]


@pytest.mark.spec("RES-1")
def test_a_simple_resolver_formats_the_address_of_the_task_asked_for() -> None:
    resolver = SimpleClusterResolver(ClusterSpec(CLUSTER), task_type="ps", task_id=1)
    assert resolver.master() == ""
    assert resolver.master("worker", 0) == "w0:1"
    assert resolver.master("worker", 0, rpc_layer="grpc") == "grpc://w0:1"
    resolver.rpc_layer = "grpc"
    assert resolver.master() == "grpc://"


@pytest.mark.spec("RES-7", "RES-11")
def test_tf_config_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = TFConfigClusterResolver()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not resolver.cluster_spec()
    assert resolver.task_id is None
    assert resolver.master() == ""
    set_tf_config(monkeypatch, cluster={"worker": {"3": "w3:1"}})
    assert resolver.cluster_spec() == {"worker": {3: "w3:1"}}


@pytest.mark.spec("RES-9")
def test_a_session_master_is_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, cluster=CLUSTER, session_master="m:9", rpc_layer="grpc")
    assert TFConfigClusterResolver().master("ps", 1) == "grpc://m:9"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"task": {"index": "first"}}, "TF_CONFIG.task.index is 'first'"),
        ({"task": {"type": [7]}}, "TF_CONFIG.task.type is [7]"),
        ({"task": "worker"}, "TF_CONFIG.task is 'worker'"),
        ({"cluster": {"ps": "p0:1"}}, "TF_CONFIG.cluster.ps is 'p0:1': write a list"),
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


def simple(cluster: dict[str, Any], **settings: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **settings)


@pytest.mark.spec("RES-3")
def test_a_task_that_two_describe_by_its_number_is_refused() -> None:
    resolver = UnionResolver(simple({"ps": {1: "a:1"}}), simple({"ps": ["b:1", "c:1"]}))
    with pytest.raises(KeyError, match=r"Duplicate keys detected .*'ps'.* \[1\]"):
        resolver.cluster_spec()
    with pytest.raises(DuplicateTaskError):
        resolver.master("ps", 0)


@pytest.mark.spec("RES-3")
def test_a_union_is_as_its_parts_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = UnionResolver(TFConfigClusterResolver(), simple({"ps": ["p:1"]}))
    assert resolver.cluster_spec() == {"ps": ["p:1"]}
    set_tf_config(monkeypatch, cluster={"worker": ["w:1"]})
    assert resolver.cluster_spec().jobs == ["worker", "ps"]


@pytest.mark.spec("RES-4")
def test_task_0_of_a_union_is_a_task() -> None:
    first = simple({}, task_type="worker", task_id=3)
    assert UnionResolver(first, task_id=0).task_id == 0
    assert UnionResolver(first, task_type="", rpc_layer="").task_type == "worker"


@pytest.mark.spec("RES-21")
def test_accelerator_hosts_are_given_by_address() -> None:
    resolver = TPUClusterResolver("grpc://a:8470, b:8470", "tpu_worker")
    assert resolver.cluster_spec() == {"tpu_worker": ["a:8470", "b:8470"]}
    assert (resolver.task_type, resolver.task_id) == ("tpu_worker", 0)
    assert resolver.master() == "grpc://a:8470"
    assert resolver.master("tpu_worker", 1) == "grpc://b:8470"


@pytest.mark.spec("RES-21")
def test_a_coordinator_of_accelerator_hosts_is_a_job_of_the_cluster() -> None:
    resolver = TPUClusterResolver("a:1", coordinator_name="chief", coordinator_address="c:1")
    assert resolver.cluster_spec() == {"worker": ["a:1"], "chief": ["c:1"]}
    with pytest.raises(ValueError, match="coordinator_address"):
        TPUClusterResolver("a:1", coordinator_name="chief")


@pytest.mark.spec("RES-21")
def test_accelerators_of_this_process_need_no_address() -> None:
    resolver = TPUClusterResolver("local")
    assert not resolver.cluster_spec()
    assert resolver.master() == ""
    assert resolver.num_accelerators() == {"TPU": torch.cuda.device_count()}
    with pytest.raises(ValueError, match="not looked up in a cloud"):
        TPUClusterResolver("my-tpu")
