"""Checkpoints that strategies save to stores."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import stratagem
from stratagem import InvalidArgumentError, NotFoundError, StoreError, Variable
from stratagem_storage.stores.object_calls import system_of
from tests.checkpoints import load_from
from tests.client.clusters import running


@pytest.fixture
def memory() -> Iterator[str]:
    """A place in the memory of this process."""
    yield f"memory://{secrets.token_hex(4)}"
    MemoryFileSystem.store.clear()


def test_a_strategy_of_one_machine_saves_to_memory(memory: str) -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        kept = Variable(torch.ones(3), name="kept")
    strategy.save(f"{memory}/model.safetensors")
    kept.assign(torch.zeros(3))
    strategy.save(f"{memory}/model.safetensors", wait=False).result()
    kept.assign(torch.full((3,), 9.0))
    strategy.restore(f"{memory}/model.safetensors").assert_consumed()
    assert kept.numpy().tolist() == [0.0, 0.0, 0.0]
    assert [name.rsplit("/")[-1] for name in MemoryFileSystem().find(memory)] == [
        "model.safetensors"
    ]


def test_the_memory_of_one_process_is_refused_with_servers() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        for ask in (strategy.save, strategy.restore):
            with pytest.raises(InvalidArgumentError, match="memory of one process"):
                ask("memory://run")


def test_a_cluster_saves_to_a_store_while_it_trains_and_another_restores(bucket: str) -> None:
    url = f"{bucket}/{secrets.token_hex(4)}"
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            kept = [Variable(torch.full((5, 2), -1.0), name=f"v{n}") for n in range(3)]
        for number in range(3):
            for value in kept:
                value.assign(torch.full((5, 2), float(number)))
            written = strategy.save(url, wait=False, keep=2, extra={"number": number})
            kept[0].assign(torch.full((5, 2), 99.0))
        written.result(60)
        restored = strategy.restore(url)
        assert restored.extra == {"number": 2}
        assert [value.numpy().max() for value in kept] == [2.0] * 3
        listed = fsspec.filesystem("s3").ls(url)
        assert [name.rsplit("/")[-1].split("-")[1] for name in listed] == ["2", "3"]
        one = f"s3://{listed[0]}"
        assert strategy.restore(one).extra == {"number": 1}
    with running(3) as cluster, cluster.strategy() as strategy:
        strategy.restore(url)
        with strategy.scope():
            kept = [Variable(torch.zeros(5, 2), name=f"v{n}") for n in range(3)]
        assert [value.numpy().min() for value in kept] == [2.0] * 3
    alone = stratagem.OneDeviceStrategy("CPU:0")
    alone.restore(url)
    with alone.scope():
        assert Variable(torch.zeros(5, 2), name="v1").numpy().max() == 2.0
    assert load_from(url)["v2"].unique().tolist() == [2.0]


_SAVE_AND_END = """
import os, sys, torch, stratagem
os.environ["AWS_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")
strategy = stratagem.OneDeviceStrategy("CPU:0")
with strategy.scope():
    kept = stratagem.Variable(torch.ones(3), name="kept")
strategy.save(sys.argv[1], wait=False)
"""


def test_a_program_ends_only_once_it_has_saved(bucket: str) -> None:
    """Also where the name of a host has to be looked up."""
    url = f"{bucket}/{secrets.token_hex(4)}"
    subprocess.run([sys.executable, "-c", _SAVE_AND_END, url], check=True, timeout=100)
    assert load_from(url)["kept"].tolist() == [1.0, 1.0, 1.0]


def test_a_bucket_that_is_not_there_is_named_and_nothing_is_held_up(bucket: str) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            kept = Variable(0.0, name="kept")
        with pytest.raises(NotFoundError, match="no bucket 'none'"):
            strategy.save("s3://none/run")
        strategy.save(f"{bucket}/{secrets.token_hex(4)}")
        kept.assign_add(1.0)
        assert kept.numpy() == 1.0


def test_a_server_that_cannot_reach_the_store_says_so(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            Variable(0.0, name="kept")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        system_of.cache_clear()
        with pytest.raises(StoreError, match=rf"'{bucket}/run"):
            strategy.save(f"{bucket}/run")
    system_of.cache_clear()
