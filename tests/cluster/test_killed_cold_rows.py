"""Servers that are killed while they move rows between memory and disk, compared with torch."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import stratagem
from stratagem import ParameterServerStrategy
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import UnavailableError
from tests.cluster.test_tables_beyond_memory import table_files
from tests.waiting import eventually

KILLS = int(os.environ.get("STRATAGEM_TEST_KILLS", "5"))

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 + 15 * KILLS)]

MIB = 1 << 20
COLUMNS, ROWS, AT_ONCE = 32, 20_000, 1000
# How keys of the embedding without a size are made of those of the other one.
FACTOR = 7
PAUSE_SECONDS = 0.4


def keys_of(step: int) -> torch.Tensor:
    drawn = torch.rand(AT_ONCE, generator=torch.Generator().manual_seed(step))
    return (drawn**2 * ROWS).long()


def loss_of(keys: torch.Tensor, items: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return a loss that moves each row to a place of its own."""
    wanted = torch.sin(keys[:, None] * torch.arange(1, COLUMNS + 1))
    return ((items * (1 + words)) - wanted).square().mean()


class Plain:
    """The same model in torch alone, all in memory."""

    def __init__(self) -> None:
        made = [torch.nn.Embedding(ROWS, COLUMNS, sparse=True) for _ in range(2)]
        for each in made:
            torch.nn.init.constant_(each.weight, 0.5)
        self.items, self.words = made
        self.weights = [each.weight for each in made]
        self.adagrad = torch.optim.Adagrad(self.weights, lr=0.1)

    def step(self, number: int) -> float:
        keys = keys_of(number)
        self.adagrad.zero_grad()
        loss = loss_of(keys, self.items(keys), self.words(keys))
        loss.backward()
        with torch.sparse.check_sparse_tensor_invariants(False):
            self.adagrad.step()
        return float(loss.item())

    def rows(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the values of each table, and their state of Adagrad."""
        for weight in self.weights:
            yield weight.detach(), self.adagrad.state[weight]["sum"]


def train(
    strategy: ParameterServerStrategy, goes_on: Callable[[int], bool], folder: Path
) -> list[float]:
    """Step as long as it goes on, and save; return the losses."""
    with strategy.scope():
        items = stratagem.nn.Embedding(ROWS, COLUMNS)
        words = stratagem.nn.DynamicEmbedding(COLUMNS)
        for each in (items, words):
            torch.nn.init.constant_(each.weight, 0.5)
    weights = [items.weight, words.weight]
    optimizer = stratagem.DistributedOptimizer(torch.optim.Adagrad(weights, lr=0.1))

    def step(keys: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(keys, items(keys), words(keys * FACTOR))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    losses = list[float]()
    while goes_on(len(losses)):
        losses.append(strategy.run(step, args=(keys_of(len(losses)),)))
    strategy.save(folder)
    return losses


def faults(steps: int, losses: list[float], saved: Path) -> Counter[str]:
    """Count what differs from as many steps in torch; empty if nothing does."""
    plain = Plain()
    found = Counter(losses=sum(plain.step(each) != losses[each] for each in range(steps)))
    (path,) = saved.glob("*/part-*.safetensors")
    parts = load_file(path)
    trained = torch.cat([keys_of(each) for each in range(steps)]).unique()
    for name, factor, (value, state) in zip(
        ("weight", "weight_1"), (1, FACTOR), plain.rows(), strict=True
    ):
        values, states = parts[name], parts[f"{name}/Adagrad/sum"]
        at = _places(parts[f"{name}[keys]"] // factor)
        found["lost"] += int((at[trained] < 0).sum())
        has = trained[at[trained] >= 0]
        found["zero state"] += int((states[at[has]] == 0).all(1).sum())
        found["values"] += int((values[at[has]] != value[has]).any(1).sum())
        found["states"] += int((states[at[has]] != state[has]).any(1).sum())
        found["untrained"] += len(values) - len(trained)
    return +found


def _places(keys: torch.Tensor) -> torch.Tensor:
    """Return where the row of each key is; -1 where there is none."""
    places = torch.full((ROWS,), -1)
    places[keys] = torch.arange(len(keys))
    return places


class Killer:
    """Kills servers while others train, at random moments.

    Args:
        cluster: The cluster.
        count: How many kills there are to be.
        victims: Which replicas to kill; None for the server without any.

    Attributes:
        steps: How many steps there were so far, which the training says.
        evicted: Bytes that servers had taken out of memory, before they were killed.
    """

    def __init__(self, cluster: LocalCluster, count: int, victims: tuple[Any, ...]) -> None:
        self._cluster, self._left, self._victims = cluster, count, victims
        self._chance = random.Random(count)
        self.steps, self.evicted, self.is_over = 0, 0, threading.Event()

    def goes_on(self, steps: int) -> bool:
        self.steps = steps
        return not self.is_over.is_set()

    def _kill(self) -> None:
        before = self.steps
        eventually(lambda: self.steps >= before + 3 or self.is_over.is_set(), 120.0)
        if self._victims == (None,):
            self.evicted += table_files(self._cluster).evicted_bytes
        time.sleep(self._chance.uniform(0.0, PAUSE_SECONDS))
        replica = self._chance.choice(self._victims)
        try:
            self._cluster.kill("ps", 0, replica)
        except UnavailableError:
            return  # the one that takes over has not done so yet
        self._cluster.restart("ps", 0)
        self._left -= 1

    @contextmanager
    def killing(self) -> Iterator[None]:
        failures = list[BaseException]()

        def kill() -> None:
            try:
                while self._left and not self.is_over.is_set():
                    self._kill()
            except BaseException as failure:
                failures.append(failure)
            finally:
                self.is_over.set()

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            self.is_over.set()
            thread.join()
        for failure in failures:
            raise failure


def trained_under_kills(
    folder: Path, count: int, victims: tuple[Any, ...], **settings: Any
) -> tuple[list[float], Killer]:
    with (
        LocalCluster(
            1, workers=0, processes=True, table_bytes=MIB, table_folder=folder, **settings
        ) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        killer = Killer(cluster, count, victims)
        with killer.killing():
            losses = train(strategy, killer.goes_on, folder / "saved")
    return losses, killer


def test_no_row_is_lost_or_mixed_up_when_a_server_with_a_log_is_killed_at_random_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Images, which read all rows, are under way when servers are killed.
    monkeypatch.setenv("STRATAGEM_LOG_RECORDS", "20")
    settings = {"durability": "log", "durability_folder": tmp_path / "log"}
    (tmp_path / "log").mkdir()
    losses, killer = trained_under_kills(tmp_path, KILLS, (None,), **settings)
    print(f"{KILLS} kills, {len(losses)} steps, {killer.evicted:,} bytes evicted", end=" ")
    assert faults(len(losses), losses, tmp_path / "saved") == Counter()
    # Cold rows were moved in each life of the server.
    assert killer.evicted > KILLS * MIB


def test_no_row_is_lost_or_mixed_up_when_either_replica_of_a_server_is_killed(
    tmp_path: Path,
) -> None:
    count = max(2, KILLS // 5)
    losses, _ = trained_under_kills(tmp_path, count, ("primary", "backup"), replicas=2)
    print(f"{count} kills, {len(losses)} steps", end=" ")
    assert faults(len(losses), losses, tmp_path / "saved") == Counter()
