"""Clusters on Ray, if Ray is not installed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from stratagem_deploy import RayCluster
from stratagem_deploy.on_ray.actors import Directory
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'stratagem\[ray\]'"):
        RayCluster().__enter__()


def test_impossible_clusters_are_refused_before_ray_is_needed() -> None:
    with pytest.raises(InvalidArgumentError, match="not for both"):
        RayCluster(workers=1, worker_servers=1)
    with pytest.raises(FailedPreconditionError, match=r"inside `with RayCluster\("):
        RayCluster().run(print)


def test_a_policy_that_cannot_be_understood_is_refused_before_ray_is_needed(tmp_path: Path) -> None:
    policy = tmp_path / "policy.txt"
    policy.write_text("worker/1 might read **\n")
    with pytest.raises(InvalidArgumentError, match=r"policy\.txt., line 1"):
        RayCluster(policy=policy)


def test_the_directory_answers_once_all_tasks_of_the_jobs_are_known() -> None:
    async def asked() -> None:
        directory = Directory({"ps": 2, "worker": 1, "chief": 0})
        await directory.publish("ps", 1, "h:2")
        answer = asyncio.create_task(directory.addresses(["chief", "ps"], wait=True))
        await asyncio.sleep(0)
        assert not answer.done()
        known = await directory.addresses(["ps"], wait=False)
        assert known == {"ps": ["not-started.invalid:0", "h:2"]}
        await directory.publish("ps", 0, "h:1")
        assert await answer == {"ps": ["h:1", "h:2"]}
        await directory.publish("ps", 0, "h:3")
        assert await directory.addresses(["ps"], wait=True) == {"ps": ["h:3", "h:2"]}

    asyncio.run(asked())


def test_the_directory_remembers_addresses_until_it_is_to_forget_them() -> None:
    async def asked() -> None:
        directory = Directory({"ps": 1, "worker": 1})
        assert await directory.last("ps", 0) == ""
        await directory.publish("ps", 0, "h:1")
        await directory.publish("worker", 0, "h:2")
        await directory.forget("worker")
        assert await directory.last("ps", 0) == "h:1"
        assert await directory.last("worker", 0) == ""

    asyncio.run(asked())
