"""Checkpoints of variables on parameter servers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy, Variable
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import load_from
from tests.client.checkpoints.counters import SERVERS, count_until, counters
from tests.client.checkpoints.training import Training, sharding
from tests.client.clusters import running
from tests.waiting import eventually

SERVER_COUNTS = (1, 2, 3, 5, 8)
CHECKPOINTS = 100


def save_at_random(strategy: ParameterServerStrategy, root: Path, count: int) -> None:
    generator = random.Random(7)
    for number in range(count):
        time.sleep(generator.random() * 0.02)
        strategy.save(root, keep=count, extra={"number": number})


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.spec("CKP-1")
def test_a_checkpoint_has_the_same_steps_of_a_worker_on_all_servers(
    tmp_path: Path,
) -> None:
    """While two workers train."""
    saved = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> int:
        mine = counters(strategy, 3)
        if worker:
            return count_until(saved, strategy, mine[worker])
        try:
            save_at_random(strategy, tmp_path, CHECKPOINTS)
        finally:
            saved.set()
        return 0

    with running(SERVERS, num_workers=3) as cluster:
        steps = cluster.run(program)
    seen = set[float]()
    for number in range(CHECKPOINTS):
        state = load_from(tmp_path / f"checkpoint-{number + 1}")
        for worker in (1, 2):
            counts = {float(state[f"worker{worker}_on{s}"]) for s in range(SERVERS)}
            assert len(counts) == 1
            seen |= counts
    assert len(seen) > CHECKPOINTS / 2
    assert max(seen) <= max(steps)


def trained(root: Path, servers: int, shards: int = 1) -> list[torch.Tensor]:
    """Saves a model in the midst of its training, and returns how that ended."""
    with running(servers) as cluster, sharding(cluster, shards) as strategy:
        training = Training(strategy)
        training.train(2)
        strategy.save(root, extra={"epoch": 3})
        return training.train(2, seed=2)


Saved = Callable[[int], tuple[Path, list[torch.Tensor]]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """What `trained` makes on a number of servers with as many shards, made once."""

    @cache
    def save(servers: int) -> tuple[Path, list[torch.Tensor]]:
        root = tmp_path_factory.mktemp("checkpoints") / "run"
        return root, trained(root, servers, shards=servers)

    return save


SHOWN = pytest.mark.spec("CKP-3", "CKP-5", "SHV-30", "VCK-10")
# In these, each number of servers comes before and after.
FEW = (1, 8), (2, 3), (3, 2)
FULL = pytest.mark.full("each number of servers saves and restores in another case")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            before,
            after,
            marks=SHOWN if (before, after) == (2, 3) else () if (before, after) in FEW else FULL,
        )
        for before in SERVER_COUNTS
        for after in SERVER_COUNTS
    ],
)
def test_training_goes_on_from_a_checkpoint(before: int, after: int, saved: Saved) -> None:
    """With other shards on other servers, with the bytes that it would have had."""
    root, expected = saved(before)
    index = open_checkpoint(root).index
    assert (f"0.weight/part_{before - 1}" in index.tensors) == (before > 1)
    with running(after) as cluster, sharding(cluster, after) as strategy:
        training = Training(strategy)
        status = strategy.restore(root)
        status.assert_consumed()
        assert status.extra == {"epoch": 3}
        assert all(map(torch.equal, training.train(2, seed=2), expected))


@pytest.mark.spec("CKP-2")
def test_what_is_made_later_starts_with_its_value(saved: Saved) -> None:
    root, expected = saved(2)
    with running(3) as cluster, sharding(cluster, 3) as strategy:
        status = strategy.restore(root)
        assert "0.weight" in status.unused
        with pytest.raises(stratagem.FailedPreconditionError, match=r"'0\.weight'"):
            status.assert_consumed()
        training = Training(strategy)
        status.assert_consumed()
        assert all(map(torch.equal, training.train(2, seed=2), expected))


@pytest.mark.spec("SHV-31", "CKP-4")
def test_each_server_writes_what_it_hosts(tmp_path: Path) -> None:
    trained(tmp_path / "run", 3)
    files = sorted(path.name for path in (tmp_path / "run/checkpoint-1").iterdir())
    parts = [f"part-{server}.safetensors" for server in range(3)]
    assert files == ["index.json", "local.safetensors", *parts]
    index = open_checkpoint(tmp_path / "run").index
    assert index.tensors["0.weight"].file == "part-0.safetensors"
    assert index.tensors["0.bias/Adam/exp_avg"].file == "part-1.safetensors"
    assert index.tensors["1.running_mean"].file == "local.safetensors"


def test_other_strategies_read_a_cluster_s_checkpoint(tmp_path: Path) -> None:
    expected = trained(tmp_path / "run", 2)
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        module = torch.nn.Sequential(
            torch.nn.Linear(3, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)
        )
    strategy.restore(tmp_path / "run")
    assert module[0].weight.shape == expected[0].shape
    file = tmp_path / "model.safetensors"
    strategy.save(file)
    with running(3) as cluster, cluster.strategy() as remote:
        training = Training(remote)
        remote.restore(file)
        found = training.state()
    assert all(map(torch.equal, found, module.state_dict().values()))


def test_other_workers_restore_when_the_chief_has(tmp_path: Path) -> None:
    expected = trained(tmp_path / "run", 2)
    other_is_there = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> list[torch.Tensor]:
        training = Training(strategy)
        if worker:
            other_is_there.set()
        assert other_is_there.wait(60)
        strategy.restore(tmp_path / "run")
        return training.state()

    with running(2, num_workers=2) as cluster:
        chief, worker = cluster.run(program)
        assert all(map(torch.equal, chief, worker))
        assert len(chief) == len(expected)


def test_a_worker_does_not_wait_for_ever_for_the_chief(tmp_path: Path) -> None:
    trained(tmp_path / "run", 2)
    with (
        running(2, num_workers=2) as cluster,
        cluster.strategy(1, peer_seconds=0.2) as strategy,
        pytest.raises(stratagem.DeadlineExceededError, match="the chief has not"),
    ):
        strategy.restore(tmp_path / "run")


def test_a_step_that_does_not_end_holds_nobody_up_for_ever(tmp_path: Path) -> None:
    begun, over = threading.Event(), threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> float:
        (mine,) = counters(strategy, 1)

        def step() -> None:
            mine[0].assign_add(1.0)
            begun.set()
            assert over.wait(60)

        if worker == 1:
            strategy.run(step)
        elif worker == 2:
            assert begun.wait(60)
            while not over.is_set():
                mine[1].assign_add(1.0)
        else:
            assert begun.wait(60)
            with pytest.raises(
                stratagem.DeadlineExceededError,
                match="in the midst of a step were /job:worker/task:1; raise",
            ):
                strategy.save(tmp_path / "run")
            before = float(mine[1].numpy())
            eventually(lambda: float(mine[1].numpy()) > before)
            over.set()
            strategy.save(tmp_path / "run")
        return 0.0

    with running(SERVERS, num_workers=3) as cluster:
        cluster.run(program, peer_seconds=2)
    assert load_from(tmp_path / "run")["worker0_on0"] == 1.0
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_checkpoint_is_as_of_the_call(tmp_path: Path) -> None:
    """What changes while it is written is copied before."""
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            big = [Variable(torch.zeros(1 << 20), name=f"v{n}") for n in range(8)]
        pending = []
        for number in range(3):
            for variable in big:
                variable.assign(torch.full((1 << 20,), float(number)))
            pending.append(strategy.save(tmp_path, wait=False, keep=3))
        for variable in big:
            variable.assign_add(torch.ones(1 << 20))
        for written in pending:
            written.result(timeout=60)
    for number in range(3):
        state = load_from(tmp_path / f"checkpoint-{number + 1}")
        assert {float(value.min()) for value in state.values()} == {float(number)}
        assert {float(value.max()) for value in state.values()} == {float(number)}


def test_what_cannot_be_saved_or_restored_is_said(tmp_path: Path) -> None:
    with running(2, num_workers=2) as cluster, cluster.strategy() as strategy:
        (mine,) = counters(strategy, 1)
        with pytest.raises(stratagem.NotFoundError, match="make it first"):
            strategy.save(tmp_path / "none" / "run")
        with pytest.raises(stratagem.InvalidArgumentError, match="keep at least 1"):
            strategy.save(tmp_path / "run", keep=0)
        with pytest.raises(stratagem.InvalidArgumentError, match="JSON"):
            strategy.save(tmp_path / "run", extra={"a": object()})
        with pytest.raises(stratagem.NotFoundError, match="there is no checkpoint"):
            strategy.restore(tmp_path)
        strategy.save(tmp_path / "run")
        with cluster.strategy(1) as other:
            other.save(tmp_path / "others")
        assert not (tmp_path / "others").exists()
        with strategy.scope():
            late = Variable(torch.zeros(2), name="late")
        with pytest.raises(stratagem.NotFoundError, match="has no 'late'"):
            strategy.restore(tmp_path / "run")
        save_file({"late": torch.zeros(3)}, tmp_path / "file")
        with pytest.raises(stratagem.InvalidArgumentError, match=r"shape \(3,\)"):
            strategy.restore(tmp_path / "file", strict=False)
        mine[0].assign(5.0)
        with pytest.raises(stratagem.FailedPreconditionError, match=r"others train.*roll_back"):
            strategy.restore(tmp_path / "run", strict=False)
        assert (float(mine[0].numpy()), late.numpy().tolist()) == (5.0, [0.0, 0.0])


def test_what_a_checkpoint_lacks_stays_as_it_is_unless_that_is_an_error(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        (mine,) = counters(strategy, 1)
        strategy.save(tmp_path / "run")
        with strategy.scope():
            late = Variable(torch.zeros(2), name="late")
        mine[0].assign(5.0)
        status = strategy.restore(tmp_path / "run", strict=False)
        assert (status.unused, status.missing) == ([], ["late"])
        assert (float(mine[0].numpy()), late.numpy().tolist()) == (0.0, [0.0, 0.0])


def test_a_save_brings_no_values_to_the_program(tmp_path: Path) -> None:
    stepped = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> int:
        with strategy.scope():
            model = torch.nn.Linear(1_000, 100)
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(1_000)).sum().backward()
            optimizer.step()

        before = strategy.traffic().received_bytes
        if worker:
            strategy.run(step)
            stepped.set()
        else:
            assert stepped.wait(60)
            strategy.save(tmp_path)
        return strategy.traffic().received_bytes - before

    with running(2, num_workers=2) as cluster:
        assert cluster.run(program)[0] < 1_000 * 100 * 4


def test_damage_is_noticed_by_the_server_that_reads_it(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        (mine,) = counters(strategy, 1)
        strategy.save(tmp_path)
        part = tmp_path / "checkpoint-1" / "part-1.safetensors"
        part.write_bytes(part.read_bytes()[:-1] + b"\xff")
        with pytest.raises(stratagem.DataLossError, match=r"part-1.*worker0_on1"):
            strategy.restore(tmp_path)
        part.unlink()
        with pytest.raises(stratagem.DataLossError, match=r"part-1.*is missing"):
            strategy.restore(tmp_path)
        assert float(mine[0].numpy()) == 0.0


def test_a_url_of_another_kind_is_not_taken_for_a_folder() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        for strategies in (strategy, stratagem.OneDeviceStrategy("CPU:0")):
            with pytest.raises(InvalidArgumentError, match=r"ssh:.* is a URL"):
                strategies.save("ssh://host/run")
            with pytest.raises(InvalidArgumentError, match="is a URL"):
                strategies.restore(Path("https://host/run"))
    assert not Path("ssh:").exists()


def test_a_worker_that_is_not_the_chief_is_told_once_that_it_saves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        with strategy.scope():
            Variable(torch.zeros(2), name="zeros")
        strategy.barrier()
        for _ in range(2):
            strategy.save(tmp_path / f"of-{worker}")
        strategy.barrier()

    with running(1, num_workers=2) as cluster:
        cluster.run(program)
    told = [text for text in caplog.messages if "called save" in text]
    assert len(told) == 1
    assert f"worker/task:1 called save('{tmp_path}/of-1')" in told[0]
    assert "the chief alone saves, /job:worker/task:0" in told[0]
    assert not (tmp_path / "of-1").exists()
