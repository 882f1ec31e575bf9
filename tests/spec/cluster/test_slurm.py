"""SlurmClusterResolver: the job step that a process runs in."""

from __future__ import annotations

import os

import pytest

from stratagem.cluster_resolver import SlurmClusterResolver
from stratagem.cluster_resolver._slurm import expand_hostlist

STEP = {
    "PROCID": "3",
    "STEP_NUM_TASKS": "5",
    "STEP_NODELIST": "t02n[13,41],t01n03",
    "STEP_TASKS_PER_NODE": "2(x2),1",
}


@pytest.fixture(autouse=True)
def no_devices_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that what a resolver sets is undone in any case.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STEP.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


@pytest.mark.spec("RES-14")
@pytest.mark.parametrize("missing", STEP)
def test_it_runs_in_a_step_of_slurm(
    step: None, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(f"SLURM_{missing}")
    with pytest.raises(RuntimeError, match=f"SLURM_{missing} not found in environment"):
        SlurmClusterResolver()


@pytest.mark.spec("RES-14")
def test_what_the_program_says_is_not_asked_of_slurm(
    step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    resolver = SlurmClusterResolver({"worker": 6}, 7000, tasks_per_node=2)
    assert resolver.cluster_spec().num_tasks("worker") == 6
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    resolver = SlurmClusterResolver({"worker": 4}, 7000, tasks_per_node={"a": 1, "b": 3})
    expected = ["a:7000", "b:7000", "b:7001", "b:7002"]
    assert resolver.cluster_spec() == {"worker": expected}


@pytest.mark.spec("RES-15", "RES-17")
def test_jobs_take_the_tasks_in_the_order_of_their_names(step: None) -> None:
    resolver = SlurmClusterResolver({"worker": 3, "ps": 2}, rpc_layer="http")
    assert resolver.get_task_info() == (None, None)
    assert resolver.master() == ""
    assert resolver.cluster_spec() == {
        "ps": ["t01n03:8888", "t02n13:8888"],
        "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889"],
    }
    assert resolver.get_task_info() == ("worker", 1)
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "http://t02n41:8888"
    assert resolver.master("ps", 0, "grpc") == "grpc://t01n03:8888"


@pytest.mark.spec("RES-15")
def test_the_visible_gpus_can_be_left_alone(step: None) -> None:
    SlurmClusterResolver(gpus_per_node=4, auto_set_gpu=False).cluster_spec()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.spec("RES-16")
def test_hosts_need_no_gpus(step: None) -> None:
    resolver = SlurmClusterResolver(gpus_per_node=0)
    assert resolver.cluster_spec().num_tasks("worker") == 5
    assert resolver.num_accelerators() == {"GPU": 0}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.spec("RES-16")
def test_a_step_without_its_own_process_is_refused(
    step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "5")
    with pytest.raises(RuntimeError, match="SLURM_PROCID is 5"):
        SlurmClusterResolver().cluster_spec()


@pytest.mark.spec("RES-18")
@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2,4],m3", ["n1", "n2", "n4", "m3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("[1-2],n[3,5-5]", ["1", "2", "n3", "n5"]),
        ("n[3-1],m", ["m"]),
    ],
)
def test_hostlists_are_expanded(hostlist: str, hosts: list[str]) -> None:
    assert expand_hostlist(hostlist) == hosts


@pytest.mark.spec("RES-18")
@pytest.mark.parametrize(
    "hostlist", ["n[1-2", "n[1-2]m", "n[1][2]", "n[]", "n[a-b]", "n[1-2-3]", "a,,b"]
)
def test_what_is_no_hostlist_is_refused(hostlist: str) -> None:
    with pytest.raises(ValueError, match="Invalid hostlist format"):
        expand_hostlist(hostlist)
